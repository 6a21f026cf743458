//! The codec of the relay's services: tonic's own, with smaller buffers.
//!
//! Owns their size alone. A call has one buffer each way from its begin to its end, and a harness
//! holds thousands of calls on which nothing is said.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// Most frames fit; larger ones make room for themselves.
const BUFFER_BYTES: usize = 1024;

/// Frames are written together up to this size, as tonic has it.
const YIELD_BYTES: usize = 32 * 1024;

/// Reads and writes the messages of a relay's calls.
#[derive(Debug, Clone)]
pub struct RelayCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for RelayCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for RelayCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(settings())
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
}
