//! Rows as bytes: few and small, because memory is what a Redis store costs.

use crate::error::{Error, Result};

/// Writes a row, value by value.
#[derive(Debug, Default)]
pub(super) struct Packer(Vec<u8>);

impl Packer {
    pub(super) fn new() -> Packer {
        Packer::default()
    }

    /// Seven bits to a byte, lowest first; small ones of either sign take one byte.
    pub(super) fn number(mut self, number: i64) -> Packer {
        let mut rest = (number << 1 ^ number >> 63).cast_unsigned();
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
        self
    }

    pub(super) fn numbers(self, numbers: &[i64]) -> Packer {
        let counted = self.number(numbers.len() as i64);
        numbers.iter().fold(counted, |packer, number| packer.number(*number))
    }

    /// All 64 bits: a mask is mostly no small number.
    pub(super) fn bits(mut self, bits: i64) -> Packer {
        self.0.extend(bits.to_be_bytes());
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Packer {
        let mut counted = self.number(bytes.len() as i64);
        counted.0.extend(bytes);
        counted
    }

    pub(super) fn optional(self, bytes: Option<&[u8]>) -> Packer {
        match bytes {
            None => self.number(0),
            Some(bytes) => self.number(1).bytes(bytes),
        }
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a row, value by value.
pub(super) struct Unpacker<'a>(&'a [u8]);

impl<'a> Unpacker<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Unpacker<'a> {
        Unpacker(bytes)
    }

    pub(super) fn number(&mut self) -> Result<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(super) fn numbers(&mut self) -> Result<Vec<i64>> {
        let count = self.number()?;
        (0..count).map(|_| self.number()).collect()
    }

    pub(super) fn bits(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into().map_err(|_| damaged())?))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| damaged())?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| damaged())
    }

    pub(super) fn optional(&mut self) -> Result<Option<&'a [u8]>> {
        Ok(if self.number()? == 0 { None } else { Some(self.bytes()?) })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }
}

pub(super) fn damaged() -> Error {
    Error::invalid(
        "a row of the store in Redis cannot be read",
        "it was written by a newer version or another program; upgrade, or restore a backup",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_read_back() {
        let row = Packer::new()
            .number(-1)
            .number(i64::MAX)
            .number(i64::MIN)
            .bits(-2)
            .numbers(&[0, 300, -300])
            .optional(None)
            .optional(Some(b"x"))
            .bytes(b"rest")
            .done();
        let mut row = Unpacker::new(&row);
        assert_eq!(
            [row.number().unwrap(), row.number().unwrap(), row.number().unwrap()],
            [-1, i64::MAX, i64::MIN]
        );
        assert_eq!(row.bits().unwrap(), -2);
        assert_eq!(row.numbers().unwrap(), [0, 300, -300]);
        assert_eq!((row.optional().unwrap(), row.optional().unwrap()), (None, Some(&b"x"[..])));
        assert_eq!(row.text().unwrap(), "rest");
        assert!(row.number().is_err());
    }
}
