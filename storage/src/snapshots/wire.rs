//! Reading fixed fields, big endian, from bytes that may be anything.

/// The bytes end before the field does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut;

/// The rest of the bytes.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Cut> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Cut)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Cut> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(Cut)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Cut> {
        self.array::<1>().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Cut> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Cut> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Cut> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Cut> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
