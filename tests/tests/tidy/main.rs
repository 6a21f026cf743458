//! What can be checked without running a harness: the code's order, and that tables in prose equal the code.

mod faults_table;
mod limits_table;
mod sources;
