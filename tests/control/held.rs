//! A connection that is held open while everything around it changes.

use std::io::{Read, Write};

use tests::tls::ClientStream;

/// A connection to one of our servers, which returns what it is sent.
pub(crate) struct Held(ClientStream);

impl Held {
    /// Begins on a connection that was just opened.
    pub(crate) fn new(mut stream: ClientStream) -> Self {
        stream.write_all(b"ECHO\n").unwrap();
        Self(stream)
    }

    /// Requires that what is sent still comes back.
    pub(crate) fn holds(&mut self) {
        self.0.write_all(b"still there").unwrap();
        let mut back = [0; 11];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"still there");
    }
}
