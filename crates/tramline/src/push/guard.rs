//! Which addresses may be dialled. Whoever may subscribe chooses where this process sends its requests; without a guard that is a
//! way into the network that the process stands in.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// Refuses every address that is not one of the public internet, but for the ranges that an operator allows. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    allow: Arc<[Cidr]>,
}

/// An address that must not be dialled, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ip} is {what}")]
pub struct Refused {
    /// The address.
    pub ip: IpAddr,
    /// What it is, to be read after "is".
    pub what: &'static str,
}

impl Guard {
    /// A guard that lets the public internet and these ranges through.
    pub fn new(allow: Vec<Cidr>) -> Guard {
        Guard { allow: allow.into() }
    }

    /// Checks an address. An IPv6 address that carries an IPv4 address is judged by that, because that is where the packets go.
    ///
    /// # Errors
    /// [`Refused`] when it must not be dialled.
    pub fn check(&self, ip: IpAddr) -> Result<(), Refused> {
        // The system dials these over IPv4, so that a range of IPv6 says nothing about them.
        let ip = ip.to_canonical();
        if self.allow.iter().any(|range| range.contains(ip)) {
            return Ok(());
        }
        match ip {
            IpAddr::V4(v4) => refuse(ip, V4, v4.to_bits().into(), 32),
            IpAddr::V6(v6) => match carried(v6) {
                Some(v4) => self.check(v4.into()).map_err(|refused| Refused { ip, ..refused }),
                None => refuse(ip, V6, v6.to_bits(), 128).and_then(|()| global(v6)),
            },
        }
    }
}

/// First bits, how many of them, and what an address that begins with them is.
type Range = (u128, u32, &'static str);

/// The IANA registry of special IPv4 addresses, but for those that are reachable from everywhere; and the one public address that
/// is a cloud's own.
const V4: &[Range] = &[
    (v4(0, 0, 0, 0), 8, "an address of this network"),
    (v4(10, 0, 0, 0), 8, "a private address"),
    (v4(100, 64, 0, 0), 10, "a shared address of a carrier"),
    (v4(127, 0, 0, 0), 8, "a loopback address"),
    (v4(168, 63, 129, 16), 32, "an address of cloud metadata"),
    (v4(169, 254, 169, 254), 32, "an address of cloud metadata"),
    (v4(169, 254, 0, 0), 16, "a link-local address"),
    (v4(172, 16, 0, 0), 12, "a private address"),
    (v4(192, 0, 0, 0), 24, "reserved for protocols"),
    (v4(192, 0, 2, 0), 24, "reserved for documentation"),
    (v4(192, 88, 99, 0), 24, "a relay between IPv6 and IPv4"),
    (v4(192, 168, 0, 0), 16, "a private address"),
    (v4(198, 18, 0, 0), 15, "reserved for benchmarks"),
    (v4(198, 51, 100, 0), 24, "reserved for documentation"),
    (v4(203, 0, 113, 0), 24, "reserved for documentation"),
    (v4(224, 0, 0, 0), 4, "a multicast address"),
    (v4(255, 255, 255, 255), 32, "the broadcast address"),
    (v4(240, 0, 0, 0), 4, "reserved"),
];

/// The same for IPv6. What is not in the table is still refused outside of 2000::/3; see [`global`].
const V6: &[Range] = &[
    (0, 128, "the unspecified address"),
    (1, 128, "a loopback address"),
    (v6([0x64, 0xff9b, 1]), 48, "an address translated to IPv4"),
    (v6([0x100, 0, 0]), 64, "an address that discards everything"),
    (v6([0x2001, 0, 0]), 32, "a Teredo tunnel"),
    (v6([0x2001, 0, 0]), 23, "reserved for protocols"),
    (v6([0x2001, 0xdb8, 0]), 32, "reserved for documentation"),
    (v6([0x3fff, 0, 0]), 20, "reserved for documentation"),
    (v6([0xfd00, 0xec2, 0]) | 0x254, 128, "an address of cloud metadata"),
    (v6([0xfc00, 0, 0]), 7, "a private address"),
    (v6([0xfe80, 0, 0]), 10, "a link-local address"),
    (v6([0xfec0, 0, 0]), 10, "a site-local address"),
    (v6([0xff00, 0, 0]), 8, "a multicast address"),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> u128 {
    Ipv4Addr::new(a, b, c, d).to_bits() as u128
}

const fn v6([a, b, c]: [u16; 3]) -> u128 {
    Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).to_bits()
}

/// The first range of the table that holds the address names it.
fn refuse(ip: IpAddr, ranges: &[Range], bits: u128, width: u32) -> Result<(), Refused> {
    match ranges.iter().find(|(first, length, _)| begins(bits, *first, *length, width)) {
        Some((_, _, what)) => Err(Refused { ip, what }),
        None => Ok(()),
    }
}

/// True when the first `length` of `width` bits are the same. All of 128 bits may be left to compare, or none.
fn begins(bits: u128, first: u128, length: u32, width: u32) -> bool {
    (bits ^ first).checked_shr(width - length).unwrap_or(0) == 0
}

/// All that was ever given to the internet begins with 001. The rest is refused without knowing what it will be one day.
fn global(ip: Ipv6Addr) -> Result<(), Refused> {
    if ip.segments()[0] >> 13 == 1 {
        return Ok(());
    }
    Err(Refused { ip: ip.into(), what: "reserved" })
}

/// The IPv4 address that packets for this one end at: v4-compatible, NAT64, 6to4 and ISATAP.
fn carried(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let (bits, segments) = (ip.to_bits(), ip.segments());
    let at = |shift: u32| Some(Ipv4Addr::from_bits((bits >> shift) as u32));
    match segments {
        // The unspecified and the loopback address look like it, and are something else.
        [0, 0, 0, 0, 0, 0, _, _] if bits > 1 => at(0),
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => at(0),
        [0x2002, ..] => at(80),
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => at(0),
        _ => None,
    }
}

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: IpAddr,
    length: u8,
}

impl Cidr {
    /// True when the address is in this range. An IPv4 address is never in a range of IPv6.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let length = u32::from(self.length);
        match (self.first, ip) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                begins(ip.to_bits().into(), first.to_bits().into(), length, 32)
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => begins(ip.to_bits(), first.to_bits(), length, 128),
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = Error;

    /// Bits behind the prefix are refused, not cut off: `10.1.2.3/8` may have been meant as one address, and opens 16 million.
    fn from_str(text: &str) -> Result<Cidr> {
        let wrong = |why: &str| {
            Error::invalid(
                format!("{text:?} is not a range of addresses: {why}"),
                "write it like 10.0.0.0/8, fd00::/8 or 192.168.1.7",
            )
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong("this is no address"))?;
        if first.to_canonical() != first {
            return Err(wrong("it is an IPv4 address, write it as one"));
        }
        let most = if first.is_ipv4() { 32 } else { 128 };
        let digits = |it: &&str| it.bytes().all(|b| b.is_ascii_digit());
        let length = match length {
            None => most,
            Some(length) => Some(length)
                .filter(digits)
                .and_then(|it| it.parse().ok())
                .filter(|it| *it <= most)
                .ok_or_else(|| wrong(&format!("after the / comes a number from 0 to {most}")))?,
        };
        let start = masked(first, length);
        if start != first {
            return Err(wrong(&format!("with this prefix it begins at {start}/{length}")));
        }
        Ok(Cidr { first, length })
    }
}

fn masked(ip: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match ip {
        IpAddr::V4(ip) => {
            Ipv4Addr::from_bits(ip.to_bits() & !u32::MAX.checked_shr(length).unwrap_or(0)).into()
        }
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::MAX.checked_shr(length).unwrap_or(0)).into()
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.length)
    }
}

#[cfg(test)]
mod tests;
