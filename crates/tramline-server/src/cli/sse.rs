//! Server-sent events, as far as Tramline uses them: an id and data.

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) event: String,
    pub(crate) data: String,
}

/// Cuts a stream of bytes into messages. Comments, which keep a silent connection alive, are dropped.
#[derive(Default)]
pub(crate) struct Parser {
    rest: Vec<u8>,
    event: String,
    data: Vec<String>,
    /// Of the message that is being read, and of the last one that was read whole.
    next_id: Option<String>,
    id: Option<String>,
}

impl Parser {
    /// More bytes have arrived: the messages that are complete now.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.rest.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut start = 0;
        while let Some(length) = self.rest[start..].iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&self.rest[start..start + length]).into_owned();
            start += length + 1;
            messages.extend(self.line(line.trim_end_matches('\r')));
        }
        self.rest.drain(..start);
        messages
    }

    /// Where the stream has come to. A message without data may say so, too.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    fn line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            self.id = self.next_id.take().or(self.id.take());
            let event = std::mem::take(&mut self.event);
            let data = std::mem::take(&mut self.data);
            return (!data.is_empty()).then(|| Message { event, data: data.join("\n") });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.next_id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.event),
            "data" => self.data.push(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_the_stream_is_cut() {
        let stream =
            ": hello\n\nid: 7\nevent: event\ndata: {\"a\":\ndata: \"é\"}\n\ndata:x\r\n\r\n".as_bytes();
        let expected = [
            Message { event: "event".to_owned(), data: "{\"a\":\n\"é\"}".to_owned() },
            Message { event: String::new(), data: "x".to_owned() },
        ];
        for cut in 0..stream.len() {
            let mut parser = Parser::default();
            let mut messages = parser.feed(&stream[..cut]);
            messages.extend(parser.feed(&stream[cut..]));
            assert_eq!(messages, expected, "cut at {cut}");
            assert_eq!(parser.id(), Some("7"), "cut at {cut}");
        }
    }

    /// Whoever went on after half a message would miss it.
    #[test]
    fn only_whole_messages_tell_where_the_stream_has_come_to() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed(b"id: 5\n\nid: 6\ndata: x\n"), []);
        assert_eq!(parser.id(), Some("5"));
        assert_eq!(parser.feed(b"\n").len(), 1);
        assert_eq!(parser.id(), Some("6"));
    }
}
