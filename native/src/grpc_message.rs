//! Cuts the bytes of a call into messages. Source: the gRPC protocol over HTTP/2; aerobee/grpc/message_reader.py.
//!
//!     uint8 compressed | uint32 length, big-endian | message
//!
//! A length is checked before any byte is kept. Compressed messages are inflated by the Python core.

pub const HEAD_BYTES: usize = 5;

/// What is wrong with a call's bytes.
pub enum MessageFault {
    Flag(u8),
    Encoding,
    TooLarge(usize),
}

/// One message: where it is, and whether it is compressed.
pub struct Cut<'a> {
    pub data: &'a [u8],
    pub is_compressed: bool,
}

pub struct MessageReader {
    kept: Vec<u8>,
    may_be_packed: bool,
}

impl MessageReader {
    /// `may_be_packed`: whether grpc-encoding is one that messages can be compressed with.
    pub fn new(may_be_packed: bool) -> Self {
        Self { kept: Vec::new(), may_be_packed }
    }

    /// Whether a message of the call may be compressed.
    pub fn may_be_packed(&self) -> bool {
        self.may_be_packed
    }

    /// Bytes that wait for the rest of their message.
    pub fn kept_bytes(&self) -> usize {
        self.kept.len()
    }

    /// Take bytes; hand the messages that are complete with them to `take`.
    pub fn feed<E: From<MessageFault>>(
        &mut self,
        data: &[u8],
        bytes_max: usize,
        mut take: impl FnMut(Cut<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut kept = std::mem::take(&mut self.kept);
        let whole: &[u8] = if kept.is_empty() {
            data
        } else {
            kept.extend_from_slice(data);
            &kept
        };
        let mut rest = whole;
        while let Some((head, behind)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let length = self.checked_length(head, bytes_max)?;
            let Some((message, behind)) = behind.split_at_checked(length) else { break };
            take(Cut { data: message, is_compressed: head[0] == 1 })?;
            rest = behind;
        }
        self.kept = if kept.is_empty() {
            rest.to_vec()
        } else {
            let used = kept.len() - rest.len();
            kept.drain(..used);
            kept
        };
        Ok(())
    }

    fn checked_length(&self, head: &[u8; HEAD_BYTES], bytes_max: usize) -> Result<usize, MessageFault> {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        match head[0] {
            0 => {}
            1 if self.may_be_packed => {}
            1 => return Err(MessageFault::Encoding),
            flag => return Err(MessageFault::Flag(flag)),
        }
        if length > bytes_max { Err(MessageFault::TooLarge(length)) } else { Ok(length) }
    }
}

/// What stands before a response message.
pub fn message_head(length: usize) -> [u8; HEAD_BYTES] {
    let length = (length as u32).to_be_bytes();
    [0, length[0], length[1], length[2], length[3]]
}
