//! The loop around a language model: what a production agent needs between the model and its
//! tools.

mod arguments;

pub use arguments::{ArgumentSchema, Problem, Rejection, SchemaError, prepare_arguments};
