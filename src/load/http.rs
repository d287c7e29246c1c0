//! A small HTTP/1.1 client: one connection, kept alive, one request at a time.
//!
//! The load generator shares two cores with what it measures. A general client spends several
//! times the work on a request that this does: pooling, redirects, header maps, TLS. This knows
//! what the server sends (`content-length` always) and nothing else.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Most bytes of an answer's head, and of its body (a page of events and some).
const HEAD_BYTES_MAX: usize = 16 << 10;
const BODY_BYTES_MAX: usize = 64 << 20;
/// How long one answer may take, beyond what the request itself asks for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where to connect, and what every request carries.
#[derive(Debug, Clone)]
pub struct Endpoint {
    authority: String,
    headers: String,
}

impl Endpoint {
    /// Of an `http://HOST:PORT` URL.
    pub fn parse(url: &str, token: Option<&str>) -> Option<Self> {
        let authority = url.strip_prefix("http://")?.trim_end_matches('/');
        let plain = !authority.is_empty() && !authority.contains(['/', '?', '#', '@', ' ']);
        if !plain {
            return None;
        }
        let with_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, p)| p.parse::<u16>().is_ok());
        let authority = if with_port {
            authority.into()
        } else {
            format!("{authority}:80")
        };
        let mut headers = format!("host: {authority}\r\ncontent-type: application/json\r\n");
        if let Some(token) = token.filter(|t| t.chars().all(|c| c.is_ascii_graphic())) {
            headers.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        Some(Self { authority, headers })
    }

    /// With a header more on every request. Neither part may hold a line break.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        if ![name, value].iter().any(|part| part.contains(['\r', '\n'])) {
            self.headers.push_str(&format!("{name}: {value}\r\n"));
        }
        self
    }

    /// `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.authority)
    }

    /// Opens a connection.
    pub async fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (headers, buffer) = (self.headers.clone(), Vec::with_capacity(4096));
        Ok(Connection {
            stream,
            headers,
            out: Vec::with_capacity(4096),
            buffer,
            broken: false,
        })
    }
}

/// One kept-alive connection. After an error it is not used again.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    headers: String,
    out: Vec<u8>,
    buffer: Vec<u8>,
    broken: bool,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// Status.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl Connection {
    /// One request and its answer. `patience` is how long the server is asked to wait.
    pub async fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        patience: Duration,
    ) -> io::Result<HttpAnswer> {
        if self.broken {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // Stays set when this future is dropped half way: the connection is out of step then.
        self.broken = true;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT + patience, async {
            self.send(method, path, body).await?;
            self.receive().await
        });
        let (answer, keep) = answer.await.map_err(|_| io::ErrorKind::TimedOut)??;
        self.broken = !keep;
        Ok(answer)
    }

    async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<()> {
        self.out.clear();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{}content-length: {}\r\n\r\n",
            self.headers,
            body.len()
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body);
        self.stream.write_all(&self.out).await
    }

    async fn receive(&mut self) -> io::Result<(HttpAnswer, bool)> {
        self.buffer.clear();
        let head = loop {
            if let Some(head) = Head::parse(&self.buffer)? {
                break head;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(malformed("the answer's head is too long"));
            }
            self.read_some().await?;
        };
        let end = head.bytes + head.body_bytes;
        while self.buffer.len() < end {
            self.read_some().await?;
        }
        let body = self
            .buffer
            .get(head.bytes..end)
            .unwrap_or_default()
            .to_vec();
        Ok((
            HttpAnswer {
                status: head.status,
                body,
            },
            head.keep,
        ))
    }

    async fn read_some(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

struct Head {
    status: u16,
    bytes: usize,
    body_bytes: usize,
    keep: bool,
}

impl Head {
    /// `None` while it is not whole.
    fn parse(buffer: &[u8]) -> io::Result<Option<Self>> {
        let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(buffer.get(..end).unwrap_or_default())
            .map_err(|_| malformed("the answer's head is no text"))?;
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| malformed("the answer has no status"))?;
        let (mut length, mut keep) = (None, true);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok().filter(|len| *len <= BODY_BYTES_MAX);
            } else if name.eq_ignore_ascii_case("connection") {
                keep = !value.eq_ignore_ascii_case("close");
            }
        }
        let none = matches!(status, 204 | 304);
        let body_bytes = match length {
            Some(length) => length,
            None if none => 0,
            None => return Err(malformed("the answer has no usable content-length")),
        };
        Ok(Some(Self {
            status,
            bytes: end + 4,
            body_bytes,
            keep,
        }))
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn only_plain_urls_are_taken() {
        assert_eq!(
            Endpoint::parse("http://h:1/", None).unwrap().url(),
            "http://h:1"
        );
        assert_eq!(
            Endpoint::parse("http://h", None).unwrap().url(),
            "http://h:80"
        );
        for bad in ["https://h", "h:1", "http://", "http://h/x", "http://u@h"] {
            assert!(Endpoint::parse(bad, None).is_none(), "{bad}");
        }
    }

    #[tokio::test]
    async fn answers_may_come_in_pieces_and_the_connection_is_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut got = [0; 1024];
            for piece in ["HTTP/1.1 200 OK\r\nContent-", "Length: 3\r\n\r\na", "bc"] {
                if piece.starts_with("HTTP") {
                    assert!(peer.read(&mut got).await.unwrap() > 0);
                }
                peer.write_all(piece.as_bytes()).await.unwrap();
                peer.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            assert!(peer.read(&mut got).await.unwrap() > 0);
            peer.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
                .await
                .unwrap();
        });
        let mut c = Endpoint::parse(&url, None)
            .unwrap()
            .connect()
            .await
            .unwrap();
        let first = c.call("GET", "/", b"", Duration::ZERO).await.unwrap();
        assert_eq!((first.status, first.body.as_slice()), (200, &b"abc"[..]));
        assert_eq!(
            c.call("GET", "/", b"", Duration::ZERO)
                .await
                .unwrap()
                .status,
            204
        );
        assert!(
            c.call("GET", "/", b"", Duration::ZERO).await.is_err(),
            "it was to be closed"
        );
        server.await.unwrap();
    }
}
