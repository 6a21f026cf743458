//! The `harness` program as it is used: its command line, its start and end, and the processes it starts.

mod cli;
mod cli_asking;
mod cli_operating;
mod crowds;
mod dev;
mod noise;
mod orphans;
mod serve;
mod worker_processes;
