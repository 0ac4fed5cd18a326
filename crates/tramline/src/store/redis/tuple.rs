//! Members of indexes: tuples whose bytes sort as their values do, so that a sorted set in which all scores are equal is an index
//! over several columns, read by `ZRANGEBYLEX`.
//!
//! A number is its length and its bytes, highest first: most take three to seven bytes. A text ends with two zeros. What follows the
//! last column is carried along and decides nothing.

/// A tuple that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tuple(Vec<u8>);

impl Tuple {
    pub(super) fn new() -> Tuple {
        Tuple::default()
    }

    /// Adds numbers.
    pub(super) fn with(mut self, numbers: &[i64]) -> Tuple {
        numbers.iter().for_each(|number| self.number(*number));
        self
    }

    /// Adds a text.
    pub(super) fn text(mut self, text: &str) -> Tuple {
        for byte in text.bytes() {
            self.0.push(byte);
            if byte == 0 {
                self.0.push(0xff);
            }
        }
        self.0.extend([0, 0]);
        self
    }

    fn number(&mut self, number: i64) {
        let size = if number < 0 { !number } else { number }.cast_unsigned();
        let length = (8 - size.leading_zeros() / 8) as u8;
        let bytes = number.cast_unsigned().to_be_bytes();
        self.0.push(if number < 0 { 0x7f - length } else { 0x80 + length });
        self.0.extend(&bytes[8 - usize::from(length)..]);
    }

    /// The bytes of the tuple.
    pub(super) fn bytes(self) -> Vec<u8> {
        self.0
    }

    /// The bytes of the tuple, and something that it carries.
    pub(super) fn carrying(mut self, load: &[u8]) -> Vec<u8> {
        self.0.extend(load);
        self.0
    }

    /// After all tuples that begin with this one: no column begins with this byte.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.push(0xff);
        self.0
    }

    /// From the first to after the last tuple that begins with this one.
    pub(super) fn all(self) -> (Vec<u8>, Vec<u8>) {
        (self.clone().bytes(), self.end())
    }
}

/// Reads a tuple, column by column. What cannot be read is zero or empty: only this program writes here.
pub(super) struct Columns<'a>(pub(super) &'a [u8]);

impl<'a> Columns<'a> {
    pub(super) fn number(&mut self) -> i64 {
        let Some((&head, rest)) = self.0.split_first() else { return 0 };
        let (negative, length) = if head >= 0x80 { (false, head - 0x80) } else { (true, 0x7f - head) };
        let length = usize::from(length).min(8).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        self.0 = rest;
        let start = if negative { u64::MAX } else { 0 };
        let value = bytes.iter().fold(start, |value, byte| value << 8 | u64::from(*byte));
        value.cast_signed()
    }

    pub(super) fn text(&mut self) -> String {
        let mut text = Vec::new();
        let mut at = 0;
        while let Some(&byte) = self.0.get(at) {
            at += 1;
            if byte == 0 {
                at += 1;
                if self.0.get(at - 1) != Some(&0xff) {
                    break;
                }
            }
            text.push(byte);
        }
        self.0 = &self.0[at.min(self.0.len())..];
        String::from_utf8(text).unwrap_or_default()
    }

    /// What the tuple carries.
    pub(super) fn load(&self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [i64; 15] = [
        i64::MIN,
        -70_000,
        -65_537,
        -65_536,
        -257,
        -256,
        -2,
        -1,
        0,
        1,
        255,
        256,
        65_535,
        1_800_000_000_000,
        i64::MAX,
    ];

    #[test]
    fn numbers_sort_and_are_read_back() {
        let written: Vec<Vec<u8>> = NUMBERS.iter().map(|n| Tuple::new().with(&[*n]).bytes()).collect();
        assert!(written.is_sorted(), "{written:?}");
        for (bytes, number) in written.iter().zip(NUMBERS) {
            assert_eq!(Columns(bytes).number(), number);
        }
    }

    #[test]
    fn texts_sort_and_are_read_back_whatever_follows() {
        let texts = ["", "\0", "\0a", "a", "a\0", "a\0b", "aa", "b"];
        let written: Vec<Vec<u8>> =
            texts.iter().map(|text| Tuple::new().text(text).with(&[7]).carrying(b"x")).collect();
        assert!(written.is_sorted(), "{written:?}");
        for (bytes, text) in written.iter().zip(texts) {
            let mut columns = Columns(bytes);
            assert_eq!((columns.text().as_str(), columns.number(), columns.load()), (text, 7, &b"x"[..]));
        }
    }

    #[test]
    fn a_prefix_covers_what_begins_with_it() {
        let (from, to) = Tuple::new().with(&[5]).all();
        let inside = Tuple::new().with(&[5, i64::MAX]).bytes();
        let after = Tuple::new().with(&[6]).bytes();
        assert!(from <= inside && inside < to && to <= after);
    }
}
