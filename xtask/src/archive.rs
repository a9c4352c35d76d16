//! Writes tar archives (POSIX ustar) that depend only on their content: no times, no owners, entries in the
//! order given.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// An archive that is being written.
pub(crate) struct Archive<W: Write> {
    output: W,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(output: W) -> Self {
        Self { output }
    }

    /// Adds a folder. The folder that contains it must have been added before.
    pub(crate) fn folder(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.output.write_all(&header(&format!("{path}/"), mode, 0, b'5')?)
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.output.write_all(&header(path, mode, content.len(), b'0')?)?;
        self.output.write_all(content)?;
        self.output.write_all(&vec![0; content.len().next_multiple_of(BLOCK) - content.len()])
    }

    /// Writes the end marker, two empty blocks.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.output.write_all(&[0; 2 * BLOCK])?;
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Offsets and lengths of the fields of a header.
const NAME: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const OWNER: (usize, usize) = (108, 8);
const GROUP: (usize, usize) = (116, 8);
const SIZE: (usize, usize) = (124, 12);
const TIME: (usize, usize) = (136, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const KIND: usize = 156;
const MAGIC: (usize, usize) = (257, 8);

fn header(name: &str, mode: u32, size: usize, kind: u8) -> io::Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    if name.len() > NAME.1 {
        return Err(io::Error::other(format!("{name}: longer than {} bytes", NAME.1)));
    }
    put(&mut block, NAME.0, name.as_bytes());
    octal(&mut block, MODE, mode.into())?;
    octal(&mut block, OWNER, 0)?;
    octal(&mut block, GROUP, 0)?;
    octal(&mut block, SIZE, size as u64)?;
    octal(&mut block, TIME, 0)?;
    put(&mut block, KIND, &[kind]);
    put(&mut block, MAGIC.0, b"ustar\x0000");
    // The sum is computed with blanks in its own field.
    put(&mut block, CHECKSUM.0, &[b' '; CHECKSUM.1]);
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    put(&mut block, CHECKSUM.0, format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

/// Writes a number as octal digits followed by a NUL.
fn octal(block: &mut [u8; BLOCK], (at, length): (usize, usize), number: u64) -> io::Result<()> {
    let digits = format!("{number:0width$o}", width = length - 1);
    if digits.len() >= length {
        return Err(io::Error::other(format!("{number} does not fit the header of an archive")));
    }
    put(block, at, digits.as_bytes());
    Ok(())
}

fn put(block: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn written() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.folder("bin", 0o755).expect("fits");
        archive.file("bin/program", 0o755, b"seven..").expect("fits");
        archive.file("empty", 0o644, b"").expect("fits");
        archive.finish().expect("memory does not fail")
    }

    #[test]
    fn tar_reads_it() {
        let mut tar = Command::new("tar");
        tar.args(["--list", "--verbose", "--numeric-owner", "--utc", "--full-time", "--file=-"]);
        let mut tar = tar.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tar is everywhere");
        tar.stdin.take().expect("it is piped").write_all(&written()).expect("tar reads to the end");
        let output = tar.wait_with_output().expect("tar ends");
        assert!(output.status.success());
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = list.lines().map(words).collect();
        let expected = [
            "drwxr-xr-x 0/0 0 1970-01-01 00:00:00 bin/",
            "-rwxr-xr-x 0/0 7 1970-01-01 00:00:00 bin/program",
            "-rw-r--r-- 0/0 0 1970-01-01 00:00:00 empty",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn blocks_are_whole_and_the_end_is_two_of_them() {
        let bytes = written();
        assert_eq!(bytes.len(), BLOCK * (1 + 2 + 1 + 2));
        assert!(bytes[bytes.len() - 2 * BLOCK..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut archive = Archive::new(Vec::new());
        assert!(archive.file(&"a".repeat(101), 0o644, b"").is_err());
        assert!(header("a", 0o644, 1 << 33, b'0').is_err());
    }
}
