"""Ports for clusters."""

import socket
import threading

from bursar_devtools.testgrid import ports


def test_a_block_has_no_port_that_somebody_listens_on() -> None:
    """
    Whichever address it listens on.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not ports.is_free(taken.getsockname()[1])
    first = ports.free_block(9)
    assert ports.FIRST <= first <= ports.LAST - 9
    assert all(map(ports.is_free, range(first, first + 9)))


def test_one_chooses_at_a_time() -> None:
    """
    The second waits until the first one's ports are in use.
    """
    order = []
    entered = threading.Event()

    def choose() -> None:
        with ports.port_lock():
            order.append("second")
        entered.set()

    with ports.port_lock():
        thread = threading.Thread(target=choose)
        thread.start()
        assert not entered.wait(0.2)
        order.append("first")
    thread.join(20.0)
    assert order == ["first", "second"]
