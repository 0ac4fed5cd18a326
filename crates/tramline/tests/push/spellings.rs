//! URLs whose host is an address in disguise. None of them may end in a connection, whatever the names in them lead to.

use crate::bed::{Names, Receiver, allowing, request};
use tramline::push::{Client, FailKind, Settings, check_callback};

/// Each with `PORT` for the port of a receiver on this machine.
const SPELLINGS: &str = "
    http://127.0.0.1:PORT/ http://127.1:PORT/ http://127.0.1:PORT/ http://127.000.000.001:PORT/ http://127.0.0.1.:PORT/
    http://2130706433:PORT/ http://2130706433.:PORT/ http://017700000001:PORT/ http://0x7f000001:PORT/ http://0X7F000001:PORT/
    http://0x7f.0.0.1:PORT/ http://0x7f.1:PORT/ http://0177.0.0.1:PORT/ http://0177.1:PORT/ http://0177.0.1:PORT/
    http://0177.0x0.0.01:PORT/ http://127.0x0.0.1:PORT/ http://127.0.0.0x1:PORT/ http://127.0.0.01:PORT/ http://127.0x1:PORT/
    http://0:PORT/ http://0.0.0.0:PORT/ http://0x0:PORT/ http://00:PORT/ http://0.0:PORT/ http://0x:PORT/
    http://127.0.0.2:PORT/ http://127.255.255.254:PORT/ http://127.16777215:PORT/ http://2147483646:PORT/
    http://4294967295:PORT/ http://4294967296:PORT/ http://0x100000000:PORT/ http://99999999999:PORT/ http://256.0.0.1:PORT/
    http://127.0.0.1.nip.io:PORT/ http://localhost:PORT/ http://LOCALHOST:PORT/ http://localhost.:PORT/ http://LocalHost.:PORT/
    http://localhost.localdomain:PORT/ http://a.localhost:PORT/ http://ip6-localhost:PORT/ http://127.0.0.1..:PORT/
    http://[::1]:PORT/ http://[::]:PORT/ http://[0:0:0:0:0:0:0:1]:PORT/ http://[0000::0001]:PORT/ http://[::0001]:PORT/
    http://[::ffff:127.0.0.1]:PORT/ http://[::ffff:7f00:1]:PORT/ http://[::FFFF:7F00:0001]:PORT/ http://[0:0:0:0:0:ffff:7f00:1]:PORT/
    http://[::127.0.0.1]:PORT/ http://[::7f00:1]:PORT/ http://[64:ff9b::127.0.0.1]:PORT/ http://[64:ff9b:1::127.0.0.1]:PORT/
    http://[2002:7f00:1::]:PORT/ http://[2002:7f00:1::1]:PORT/ http://[2001:0:7f00:1::]:PORT/ http://[fe80::1]:PORT/
    http://[fe80::1%25lo]:PORT/ http://[fe80::1%lo]:PORT/ http://[::1%25lo]:PORT/ http://[::1%251]:PORT/ http://[::1.]:PORT/
    http://[::1]].:PORT/ http://[[::1]]:PORT/ http://::1:PORT/ http://[v1.1]:PORT/ http://[127.0.0.1]:PORT/ http://[::ffff:127.1]:PORT/
    http://user@127.0.0.1:PORT/ http://user:pass@127.0.0.1:PORT/ http://example.org@127.0.0.1:PORT/ http://@127.0.0.1:PORT/
    http://:@127.0.0.1:PORT/ http://example.org:80@127.0.0.1:PORT/ http://example.org%40127.0.0.1:PORT/ http://a@b@127.0.0.1:PORT/
    http://127.0.0.1:PORT@example.org:PORT/ http://127.0.0.1%2f@example.org:PORT/ http://example.org:PORT\\@127.0.0.1:PORT/
    http:127.0.0.1:PORT/ http:/127.0.0.1:PORT/ http:///127.0.0.1:PORT/ http:\\\\127.0.0.1:PORT\\ http://\\127.0.0.1:PORT/
    http://127。0。0。1:PORT/ http://127．0．0．1:PORT/ http://127｡0｡0｡1:PORT/ http://１２７.０.０.１:PORT/ http://①②⑦.⓪.⓪.①:PORT/
    http://１２７。０。０。１:PORT/ http://𝟏𝟐𝟕.𝟎.𝟎.𝟏:PORT/ http://０x７f.1:PORT/ http://⑫⑦.0.0.1:PORT/ http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:PORT/
    http://%31%32%37.0.0.1:PORT/ http://127%2e0%2e0%2e1:PORT/ http://%6c%6f%63%61%6c%68%6f%73%74:PORT/ http://127.0.0.1%00:PORT/
    http://127.0.0.1%20:PORT/ http://127.0.0.1%0a:PORT/ http://lo\u{ad}calhost:PORT/ http://127.0.0.1\u{200b}:PORT/ http://ＬＯＣＡＬＨＯＳＴ:PORT/
    http://169.254.169.254/ http://2852039166/ http://0xa9fea9fe/ http://0251.0376.0251.0376/ http://169.254.43518/ http://[::ffff:a9fe:a9fe]/
    http://[fd00:ec2::254]/ http://metadata.google.internal/ http://169。254。169。254/ http://0xA9.0xFE.0xA9.0xFE/
    http://10.0.0.1/ http://167772161/ http://0xa000001/ http://192.168.257/ http://172.1048577/ http://[::ffff:10.0.0.1]/ http://[fc00::1]/
    http://100.64.0.1/ http://198.18.0.1/ http://224.0.0.1/ http://255.255.255.255/ http://[ff02::1]/ http://[100::1]/ http://240.0.0.1/
    https://127.0.0.1:PORT/ https://0x7f.1:PORT/ https://[::1]:PORT/ https://localhost:PORT/ HTTP://127.0.0.1:PORT/ hTTps://[::ffff:7f00:1]:PORT/
    ftp://127.0.0.1:PORT/ gopher://127.0.0.1:PORT/ file://127.0.0.1/etc/passwd ws://127.0.0.1:PORT/ unix://127.0.0.1/ dict://127.0.0.1:PORT/";

#[tokio::test]
async fn no_spelling_of_an_address_gets_past_the_guard() {
    let receiver = Receiver::answering(&["HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]).await;
    let names = Names::leading_to(&[&["127.0.0.1"]]);
    let client = Client::new(Settings { resolver: names, ..allowing(&[]) });
    let port = receiver.address.port().to_string();
    let mut dialled = 0;
    for spelling in SPELLINGS.split_whitespace().map(|it| it.replace("PORT", &port)) {
        let Ok(url) = check_callback(&spelling, false) else { continue };
        let failed = client.post(request(url.as_str())).await.result.expect_err(&spelling);
        assert_eq!(failed.kind, FailKind::Refused, "{spelling}: {}", failed.text);
        dialled += 1;
    }
    assert!(dialled > 90, "most of them are URLs, and it is the guard that refuses them: {dialled}");
    assert_eq!(receiver.settled().await, 0);
}

/// The client does not depend on anybody having checked the callback.
#[tokio::test]
async fn nor_does_one_that_nobody_has_checked() {
    let receiver = Receiver::answering(&["HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]).await;
    let client = Client::new(Settings { resolver: Names::leading_to(&[&["127.0.0.1"]]), ..allowing(&[]) });
    let port = receiver.address.port().to_string();
    for spelling in SPELLINGS.split_whitespace().map(|it| it.replace("PORT", &port)) {
        let Ok(url) = spelling.parse::<url::Url>() else { continue };
        let failed = client.post(request(url.as_str())).await.result.expect_err(&spelling);
        let never = [FailKind::Refused, FailKind::Invalid];
        assert!(never.contains(&failed.kind), "{spelling}: {}: {}", failed.kind, failed.text);
    }
    assert_eq!(receiver.settled().await, 0);
}
