//! The protocol and the HTTP interface over real sockets, case by case, with scripted peers and SDK ones.

mod asking;
mod attach;
mod grpcio;
mod http;
mod limits;
mod many;
mod model_answers;
mod model_calls;
mod operators;
mod placing;
mod refusals;
mod resumed_asks;
mod resumed_late;
mod schemas;
mod sdk_calls;
mod slow_peers;
mod steps;
mod strangers;
mod streaming;
mod transport;
