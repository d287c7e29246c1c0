//! Stored forms: a version byte, then bincode of types that exist only to be stored.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::{Decode, Encode};
use bytes::Bytes;

/// Most bytes that one stored value may claim while being decoded.
const DECODE_BYTES_MAX: usize = 64 << 20;
/// The version that this code writes.
const VERSION: u8 = 1;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<DECODE_BYTES_MAX>> =
    bincode::config::standard()
        .with_fixed_int_encoding()
        .with_limit::<DECODE_BYTES_MAX>();

/// Why a stored value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error("stored value has version {0}; this version reads up to {VERSION}")]
    Newer(u8),
    /// Not a value of this type.
    #[error("stored value does not decode: {0}")]
    Damaged(String),
}

/// The stored form.
pub fn encode<T: Encode>(value: &T) -> Bytes {
    // Room for a header, so that the most common value grows once.
    let mut out = Vec::with_capacity(224);
    out.push(VERSION);
    // Derived encoders write into a Vec: no failing case.
    let _ = bincode::encode_into_std_write(value, &mut out, CONFIG);
    out.into()
}

/// Reads a stored form; every byte must belong to it.
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (version, rest) = bytes
        .split_first()
        .ok_or_else(|| DecodeError::Damaged("empty".to_owned()))?;
    if *version != VERSION {
        return Err(DecodeError::Newer(*version));
    }
    let (value, read) = bincode::decode_from_slice(rest, CONFIG)
        .map_err(|e| DecodeError::Damaged(e.to_string()))?;
    if read != rest.len() {
        return Err(DecodeError::Damaged(format!(
            "{} bytes too many",
            rest.len() - read
        )));
    }
    Ok(value)
}

/// For a part of a stored value that is kept elsewhere, or nowhere: it is written as nothing and
/// read as its default.
macro_rules! encodes_as_nothing {
    ($name:ty) => {
        impl bincode::Encode for $name {
            fn encode<E: bincode::enc::Encoder>(
                &self,
                _: &mut E,
            ) -> Result<(), bincode::error::EncodeError> {
                Ok(())
            }
        }

        impl<C> bincode::Decode<C> for $name {
            fn decode<D: bincode::de::Decoder<Context = C>>(
                _: &mut D,
            ) -> Result<Self, bincode::error::DecodeError> {
                Ok(Self::default())
            }
        }

        impl<'de, C> bincode::BorrowDecode<'de, C> for $name {
            fn borrow_decode<D: bincode::de::BorrowDecoder<'de, Context = C>>(
                _: &mut D,
            ) -> Result<Self, bincode::error::DecodeError> {
                Ok(Self::default())
            }
        }
    };
}
pub(crate) use encodes_as_nothing;
