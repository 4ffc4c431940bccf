"""Finding live objects does not break a thread that is making some."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from perfkit.record.live_objects import few_instances_of, instances_of, subclasses_of


class Base:
    """A class of the test's own, so that its instances are counted exactly."""


class Derived(Base):
    pass


class Proxy:
    """Says that it is a `Base`."""

    asked = False

    @property  # type: ignore[misc]  # what proxies do
    def __class__(self) -> type:
        Proxy.asked = True
        return Base


def test_instances_are_found_by_their_own_type() -> None:
    base, derived, proxy = Base(), Derived(), Proxy()

    assert instances_of([Base]) == [base]
    assert {id(one) for one in instances_of(subclasses_of(Base))} == {id(base), id(derived)}
    assert not Proxy.asked
    del proxy


def test_nothing_is_kept_alive() -> None:
    one = Base()
    gone = weakref.ref(one)
    instances_of([Base])
    del one
    assert gone() is None


def test_instances_of_one_type_are_found_where_few_objects_are_tracked() -> None:
    base, derived, proxy = Base(), Derived(), Proxy()
    tracked = len(gc.get_objects())

    assert few_instances_of(Base, at_most=2 * tracked) == [base]
    assert few_instances_of(Base, at_most=tracked // 2) is None
    assert not Proxy.asked
    del derived, proxy


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns often, so that a rare interleaving comes within a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("often_switched")
def test_a_thread_that_makes_tuples_meanwhile_is_not_disturbed() -> None:
    errors: list[BaseException] = []
    over = threading.Event()

    def make() -> None:
        try:
            while not over.is_set():
                tuple(number for number in range(200))
        except SystemError as error:
            errors.append(error)

    maker = threading.Thread(target=make)
    maker.start()
    for _ in range(50):
        instances_of([Base])
        few_instances_of(Base, at_most=10**9)
    over.set()
    maker.join()

    assert errors == []
