"""A server that only answers, for the load generator's own ceiling.

It parses nothing: whatever arrives on a connection is taken for one request.
"""

import json
import select
import socket

ANSWER = (
    b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n"
    b'{"outcome":"accepted"}'
)


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(json.dumps({"port": listening.getsockname()[1], "token": "none"}), flush=True)
    poller = select.epoll()
    poller.register(listening, select.EPOLLIN)
    open_sockets: dict[int, socket.socket] = {}
    while True:
        for number, _ in poller.poll():
            if number == listening.fileno():
                one, _ = listening.accept()
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                open_sockets[one.fileno()] = one
                poller.register(one, select.EPOLLIN)
            elif open_sockets[number].recv(65536):
                open_sockets[number].send(ANSWER)
            else:
                poller.unregister(number)
                open_sockets.pop(number).close()


if __name__ == "__main__":
    main()
