//! Builds ClientHellos from their fields, for the tests.

/// The fields of a ClientHello. Each of them can be set to an invalid value.
#[derive(Clone, Debug)]
pub(super) struct Hello {
    pub(super) kind: u8,
    pub(super) session_id: Vec<u8>,
    pub(super) cipher_suites: Vec<u8>,
    pub(super) compression: Vec<u8>,
    /// `None`: the message ends before the extensions' length.
    pub(super) extensions: Option<Vec<(u16, Vec<u8>)>>,
    /// Bytes after the extensions, inside the message.
    pub(super) trailer: Vec<u8>,
}

impl Hello {
    /// Returns a hello as a TLS 1.3 client sends it, with these extensions.
    pub(super) fn with(extensions: Vec<(u16, Vec<u8>)>) -> Self {
        Self {
            kind: 1,
            session_id: vec![7; 32],
            cipher_suites: vec![0x13, 1, 0x13, 2, 0x13, 3],
            compression: vec![0],
            extensions: Some(extensions),
            trailer: Vec::new(),
        }
    }

    /// Returns a hello with a server name between two other extensions.
    pub(super) fn named(name: &[u8]) -> Self {
        Self::with(vec![(23, vec![]), server_name(&[(0, name)]), (16, b"\0\x03\x02h2".to_vec())])
    }

    /// Returns the handshake message.
    pub(super) fn message(&self) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([9; 32]);
        body.push(self.session_id.len() as u8);
        body.extend(&self.session_id);
        body.extend(prefixed(&self.cipher_suites));
        body.push(self.compression.len() as u8);
        body.extend(&self.compression);
        if let Some(extensions) = &self.extensions {
            let block: Vec<u8> = extensions
                .iter()
                .flat_map(|(kind, data)| [kind.to_be_bytes().to_vec(), prefixed(data)].concat())
                .collect();
            body.extend(prefixed(&block));
        }
        body.extend(&self.trailer);
        let length = (body.len() as u32).to_be_bytes();
        [&[self.kind], &length[1..], &body].concat()
    }

    /// Returns the stream in records of `size` bytes; the last one may be shorter.
    pub(super) fn records(&self, size: usize) -> Vec<u8> {
        self.message().chunks(size).flat_map(|part| record(22, part)).collect()
    }

    /// Returns the stream in one record.
    pub(super) fn stream(&self) -> Vec<u8> {
        record(22, &self.message())
    }
}

/// Returns a record.
pub(super) fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1], prefixed(payload).as_slice()].concat()
}

/// Returns the bytes preceded by their 16-bit length.
pub(super) fn prefixed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

/// Returns a server_name extension with these entries of (type, name).
pub(super) fn server_name(entries: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
    let list: Vec<u8> =
        entries.iter().flat_map(|(kind, name)| [vec![*kind], prefixed(name)].concat()).collect();
    (0, prefixed(&list))
}
