//! Addresses by the hundred: what each one is, and what an operator's ranges change.

use super::*;
use crate::push::{Client, FailKind, Request, Resolve, Settings};
use async_trait::async_trait;
use std::sync::Mutex;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// What the addresses are, and the addresses: both ends of every range, and some between.
const REFUSED: &[(&str, &str)] = &[
    ("an address of this network", "0.0.0.0 0.0.0.1 0.1.2.3 0.255.255.255"),
    (
        "a private address",
        "10.0.0.0 10.0.0.1 10.1.2.3 10.96.0.1 10.255.255.255 172.16.0.0 172.16.0.1 172.17.0.1 172.20.10.5
         172.31.255.255 192.168.0.0 192.168.0.1 192.168.1.1 192.168.122.1 192.168.255.255",
    ),
    (
        "a shared address of a carrier",
        "100.64.0.0 100.64.0.1 100.100.100.200 100.127.255.255 100.96.7.8",
    ),
    ("a loopback address", "127.0.0.0 127.0.0.1 127.0.0.53 127.0.1.1 127.1.1.1 127.255.255.254 127.255.255.255"),
    ("an address of cloud metadata", "169.254.169.254 168.63.129.16"),
    (
        "a link-local address",
        "169.254.0.0 169.254.0.1 169.254.169.253 169.254.169.255 169.254.170.2 169.254.255.255",
    ),
    ("reserved for protocols", "192.0.0.0 192.0.0.1 192.0.0.8 192.0.0.170 192.0.0.192 192.0.0.255"),
    (
        "reserved for documentation",
        "192.0.2.0 192.0.2.1 192.0.2.255 198.51.100.0 198.51.100.7 198.51.100.255 203.0.113.0 203.0.113.99
         203.0.113.255",
    ),
    ("a relay between IPv6 and IPv4", "192.88.99.0 192.88.99.1 192.88.99.255"),
    ("reserved for benchmarks", "198.18.0.0 198.18.0.1 198.19.255.255 198.19.0.0"),
    ("a multicast address", "224.0.0.0 224.0.0.1 224.0.0.251 232.1.2.3 239.255.255.250 239.255.255.255"),
    ("the broadcast address", "255.255.255.255"),
    ("reserved", "240.0.0.0 240.0.0.1 247.1.2.3 250.0.0.1 255.0.0.0 255.255.255.254"),
    ("the unspecified address", ":: 0:0:0:0:0:0:0:0 0::0"),
    ("a loopback address", "::1 0:0:0:0:0:0:0:1 0000:0000:0000:0000:0000:0000:0000:0001"),
    (
        "an address translated to IPv4",
        "64:ff9b:1:: 64:ff9b:1::1 64:ff9b:1::8.8.8.8 64:ff9b:1::10.0.0.1 64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
    ),
    ("an address that discards everything", "100:: 100::1 100::ffff:ffff:ffff:ffff"),
    (
        "a Teredo tunnel",
        "2001:: 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:0:ffff:ffff:ffff:ffff:ffff:ffff",
    ),
    (
        "reserved for protocols",
        "2001:1::1 2001:2::1 2001:10::1 2001:20::1 2001:30::1 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
    ),
    (
        "reserved for documentation",
        "2001:db8:: 2001:db8::1 2001:db8:1:2:3:4:5:6 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 3fff:: 3fff::1
         3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
    ),
    ("an address of cloud metadata", "fd00:ec2::254"),
    (
        "a private address",
        "fc00:: fc00::1 fc01:2:3:4:5:6:7:8 fd00:: fd00::1 fd00:ec2::23 fd00:ec2::253 fd20:ce::254 fd12:3456:789a::1
         fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ),
    (
        "a link-local address",
        "fe80:: fe80::1 fe80::a9fe:a9fe fe80::1:2:3:4 fe90::1 febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ),
    ("a site-local address", "fec0:: fec0::1 fed0::1 feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("a multicast address", "ff00:: ff01::1 ff02::1 ff02::fb ff05::2 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    (
        "reserved",
        "100:0:0:1:: 200::1 400::1 800::1 1000::1 1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 4000:: 5f00::1 8000::1
         c000::1 e000::1 f000::1 f800::1 fa00::1 fbff::1 fe00::1 fe7f::1 64:ff9b:0:0:0:1:8.8.8.8 64:ff9a::8.8.8.8
         ::1:0:0:0 0:0:0:0:1::8.8.8.8",
    ),
];

/// Addresses of the internet, many of them next to one that is not.
const PUBLIC: &str = "1.0.0.0 1.1.1.1 8.8.8.8 9.9.9.9 9.255.255.255 11.0.0.0 11.0.0.1 93.184.216.34 100.63.255.255
    100.128.0.0 126.255.255.255 128.0.0.0 128.0.0.1 168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0
    172.15.255.255 172.32.0.0 172.32.0.1 191.255.255.255 192.0.1.0 192.0.1.255 192.0.3.0 192.31.196.1 192.52.193.1
    192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 192.175.48.1 198.17.255.255 198.20.0.0 198.51.99.255
    198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255
    2000:: 2001:200::1 2001:4860:4860::8888 2001:db7:ffff:ffff:ffff:ffff:ffff:ffff 2001:db9::1 2003::1
    2400:cb00::1 2606:4700:4700::1111 2620:4f:8000::1 2620:fe::fe 2a00:1450:4001:800::200e 2a03:2880::1
    3ffe::1 3fff:1000:: 3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";

/// The ways in which an IPv6 address carries an IPv4 address; `{}` in text, `<>` as two groups of hexadecimal digits.
const CARRIERS: &[&str] = &[
    "::ffff:{}",
    "::ffff:<>",
    "0:0:0:0:0:ffff:<>",
    "::{}",
    "64:ff9b::{}",
    "64:ff9b::<>",
    "2002:<>::",
    "2002:<>::1",
    "2002:<>:1:2:3:4:5",
    "2a00:1450::5efe:<>",
    "2a00:1450::200:5efe:{}",
];

fn v4_refused() -> impl Iterator<Item = Ipv4Addr> {
    REFUSED.iter().flat_map(|(_, all)| all.split_whitespace()).filter_map(|it| it.parse().ok())
}

fn carry(carrier: &str, ip: Ipv4Addr) -> Ipv6Addr {
    let bits = ip.to_bits();
    let groups = format!("{:x}:{:x}", bits >> 16, bits & 0xffff);
    carrier.replace("{}", &ip.to_string()).replace("<>", &groups).parse().unwrap()
}

fn check(guard: &Guard, ip: &str) -> Result<(), Refused> {
    guard.check(ip.parse().unwrap())
}

fn allowing(ranges: &[&str]) -> Guard {
    Guard::new(ranges.iter().map(|range| range.parse().unwrap()).collect())
}

#[test]
fn addresses_that_are_not_public_are_refused_for_what_they_are() {
    for (what, all) in REFUSED {
        for ip in all.split_whitespace() {
            let refused = check(&Guard::default(), ip).expect_err(ip);
            assert_eq!((refused.what, refused.ip), (*what, ip.parse().unwrap()), "{ip}");
        }
    }
}

#[test]
fn addresses_of_the_internet_are_let_through() {
    for ip in PUBLIC.split_whitespace() {
        assert_eq!(check(&Guard::default(), ip), Ok(()), "{ip}");
    }
}

#[test]
fn an_address_that_carries_another_is_judged_by_it() {
    let guard = Guard::default();
    for carrier in CARRIERS {
        // `::0.0.0.0` and `::0.0.0.1` are the unspecified and the loopback address: refused, for another reason.
        for ip in v4_refused() {
            assert!(guard.check(carry(carrier, ip).into()).is_err(), "{carrier} {ip}");
        }
        for ip in PUBLIC.split_whitespace().filter_map(|it| it.parse().ok()) {
            assert_eq!(guard.check(carry(carrier, ip).into()), Ok(()), "{carrier} {ip}");
        }
    }
    assert_eq!(check(&guard, "64:ff9b::a9fe:a9fe").unwrap_err().what, "an address of cloud metadata");
}

#[test]
fn a_range_that_is_allowed_opens_itself_and_nothing_else() {
    let guard = allowing(&["10.1.0.0/16", "127.0.0.1", "fd12::/16"]);
    for ip in ["10.1.0.0", "10.1.255.255", "127.0.0.1", "fd12::1", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"] {
        assert_eq!(check(&guard, ip), Ok(()), "{ip}");
    }
    for ip in ["10.0.255.255", "10.2.0.0", "127.0.0.2", "::1", "fd13::1", "::ffff:10.2.0.0", "2002:a02::"] {
        assert!(check(&guard, ip).is_err(), "{ip}");
    }
}

#[test]
fn all_of_ipv6_does_not_open_ipv4_in_disguise() {
    let guard = allowing(&["::/0"]);
    assert_eq!(check(&guard, "fe80::1"), Ok(()));
    assert!(check(&guard, "::ffff:127.0.0.1").is_err());
    assert_eq!(check(&allowing(&["0.0.0.0/0"]), "::ffff:127.0.0.1"), Ok(()));
}

#[test]
fn a_refusal_reads_as_a_sentence() {
    let refused = check(&Guard::default(), "::ffff:10.0.0.1").unwrap_err();
    assert_eq!(refused.to_string(), "10.0.0.1 is a private address");
}

#[test]
fn ranges_are_read_and_shown() {
    for text in
        ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "192.168.1.7/32", "2001:db8::1/128", "128.0.0.0/1"]
    {
        assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
    }
    assert_eq!("192.168.1.7".parse::<Cidr>().unwrap().to_string(), "192.168.1.7/32");
    assert_eq!("::1".parse::<Cidr>().unwrap().to_string(), "::1/128");
}

#[test]
fn a_range_that_may_be_a_mistake_is_refused() {
    for text in [
        "",
        "/",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/8/8",
        "10.0.0.0 /8",
        "10/8",
        "10.0.0.1/8",
        "fd00::1/8",
        "fd00::/129",
        "0.0.0.1/0",
        "example.org",
        "[::1]",
        "::ffff:10.0.0.0/104",
        "fe80::1%eth0",
        "10.0.0.0/255.0.0.0",
        "010.0.0.0/8",
    ] {
        assert!(text.parse::<Cidr>().is_err(), "{text}");
    }
    let error = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
    assert!(error.to_string().contains("it begins at 10.0.0.0/8"), "{error}");
}

/// Every name leads to one address, which changes.
#[derive(Debug)]
struct Leading(Mutex<IpAddr>);

#[async_trait]
impl Resolve for Leading {
    async fn resolve(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(vec![*self.0.lock().unwrap()])
    }
}

fn request(host: &str, port: u16) -> Request {
    Request {
        url: format!("http://{host}:{port}/").parse().unwrap(),
        headers: Default::default(),
        body: Default::default(),
        timeout: Duration::from_secs(60),
    }
}

/// The guard is of use only if nothing goes round it: by name and written out, through all that a request goes through.
#[tokio::test]
async fn the_client_dials_none_of_them() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let names = Arc::new(Leading(Mutex::new(Ipv4Addr::UNSPECIFIED.into())));
    let client = Client::new(Settings { resolver: names.clone(), ..Settings::default() });
    let plain = REFUSED.iter().flat_map(|(_, all)| all.split_whitespace()).map(|it| it.parse().unwrap());
    let carried = CARRIERS.iter().flat_map(|carrier| v4_refused().map(|ip| IpAddr::V6(carry(carrier, ip))));
    let mut refused = 0;
    for ip in plain.chain(carried) {
        *names.0.lock().unwrap() = ip;
        let written = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        for host in ["hooks.example", &written] {
            let failed = client.post(request(host, port)).await.result.expect_err(host);
            assert_eq!(failed.kind, FailKind::Refused, "{ip} as {host}: {}", failed.text);
            refused += 1;
        }
    }
    assert!(refused > 1_000, "{refused}");
    let probe = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (_, first) = listener.accept().await.unwrap();
    assert_eq!(first, probe.local_addr().unwrap(), "nobody came before");
}
