//! Builds ClientHellos (RFC 8446 section 4.1.2), well-formed or not, without a TLS library.

/// Bytes of a record's header.
const RECORD_HEADER: usize = 5;

/// A builder of a ClientHello.
#[derive(Clone, Debug)]
pub struct Hello {
    name: Option<Vec<u8>>,
    /// Total length including record headers, reached with a padding extension (RFC 7685).
    length: Option<usize>,
    record_bytes: usize,
    /// Whether the server name follows the padding.
    name_last: bool,
}

/// A hello without a server name.
pub fn hello() -> Hello {
    Hello { name: None, length: None, record_bytes: 16_384, name_last: false }
}

impl Hello {
    /// Sets the server name, exactly as given.
    pub fn name(mut self, name: impl AsRef<[u8]>) -> Self {
        self.name = Some(name.as_ref().to_vec());
        self
    }

    /// Makes the server name the last extension, after the padding.
    pub fn name_last(mut self) -> Self {
        self.name_last = true;
        self
    }

    /// Pads the hello to this many bytes in total, record headers included.
    pub fn length(mut self, bytes: usize) -> Self {
        self.length = Some(bytes);
        self
    }

    /// Splits the hello into TLS records of at most this many payload bytes.
    pub fn records_of(mut self, bytes: usize) -> Self {
        self.record_bytes = bytes;
        self
    }

    /// Returns the bytes as a client would send them.
    pub fn bytes(&self) -> Vec<u8> {
        let plain = self.message(None);
        let Some(length) = self.length else { return self.records(&plain) };
        let message = length - RECORD_HEADER * length.div_ceil(RECORD_HEADER + self.record_bytes);
        let missing = message.checked_sub(plain.len()).expect("longer than without padding");
        // The padding extension has a header of its own.
        let padding = missing.checked_sub(4).expect("room for a padding extension");
        let padded = self.records(&self.message(Some(padding)));
        assert_eq!(padded.len(), length, "the length falls into a record header");
        padded
    }

    /// Returns the handshake message.
    fn message(&self, padding: Option<usize>) -> Vec<u8> {
        let mut extensions = Vec::new();
        if !self.name_last {
            self.server_name(&mut extensions);
        }
        extension(&mut extensions, 43, &[2, 3, 4]); // supported_versions: TLS 1.3
        extension(&mut extensions, 10, &sized16(&[0, 29])); // supported_groups: x25519
        extension(&mut extensions, 13, &sized16(&[4, 3])); // signature_algorithms: ecdsa_secp256r1_sha256
        if let Some(padding) = padding {
            extension(&mut extensions, 21, &vec![0; padding]);
        }
        if self.name_last {
            self.server_name(&mut extensions);
        }
        let mut body = vec![3, 3];
        body.extend([0x5a; 32]); // random
        body.push(32);
        body.extend([0xa5; 32]); // legacy_session_id
        body.extend(sized16(&[0x13, 1])); // TLS_AES_128_GCM_SHA256
        body.extend([1, 0]); // no compression
        body.extend(sized16(&extensions));
        let mut message = vec![1];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    /// Returns the message in records.
    fn records(&self, message: &[u8]) -> Vec<u8> {
        let mut stream = Vec::new();
        for part in message.chunks(self.record_bytes) {
            stream.extend([22, 3, 1]);
            stream.extend(sized16(part));
        }
        stream
    }

    fn server_name(&self, extensions: &mut Vec<u8>) {
        if let Some(name) = &self.name {
            let mut list = vec![0];
            list.extend(sized16(name));
            extension(extensions, 0, &sized16(&list));
        }
    }
}

fn sized16(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
    [&length.to_be_bytes()[..], bytes].concat()
}

fn extension(to: &mut Vec<u8>, kind: u16, body: &[u8]) {
    to.extend(kind.to_be_bytes());
    to.extend(sized16(body));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Returns the server name that rustls reads from a hello.
    #[expect(clippy::unwrap_in_result, reason = "`None` is an answer here, not a failure")]
    fn accepted(bytes: &[u8]) -> Option<String> {
        let mut acceptor = rustls::server::Acceptor::default();
        let mut stream = Cursor::new(bytes);
        while (stream.position() as usize) < bytes.len() {
            acceptor.read_tls(&mut stream).unwrap();
        }
        let accepted = acceptor.accept().map_err(|(error, _)| error).unwrap().expect("a whole hello");
        accepted.client_hello().server_name().map(str::to_owned)
    }

    #[test]
    fn rustls_reads_what_was_meant() {
        assert_eq!(accepted(&hello().bytes()), None);
        let named = hello().name("a.example.com");
        assert_eq!(accepted(&named.bytes()).as_deref(), Some("a.example.com"));
        for length in [600, 1500, 16_389] {
            let padded = named.clone().length(length).bytes();
            assert_eq!(padded.len(), length);
            assert_eq!(accepted(&padded).as_deref(), Some("a.example.com"));
        }
        let last = named.clone().name_last().length(1800).bytes();
        assert_eq!(last.len(), 1800);
        assert_eq!(accepted(&last).as_deref(), Some("a.example.com"));
        for (length, record) in [(1000, 100), (18_432, 40)] {
            let cut = named.clone().length(length).records_of(record).bytes();
            assert_eq!(cut.len(), length);
            assert_eq!(accepted(&cut).as_deref(), Some("a.example.com"));
        }
    }
}
