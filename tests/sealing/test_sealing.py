"""Both ends of sealing: what is sealed arrives, and nothing else does."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sealing.sealing_rig import DAY, NOW, World
from tests.thoroughness import examples

from bursar.model.errors import InputError
from bursar.model.site import SealLevel
from bursar.sealing import levels
from bursar.sealing.certificates import Identity
from bursar.sealing.envelope import MOST_BYTES, SealError
from bursar.sealing.task_sealing import TaskOpenerFile, TaskSealer, read_sealer
from bursar.service.identity.issuing import certificate_pem, identity_pem, issue, make_authority

ABOUT = "instance/label"
LEVELS: tuple[SealLevel, ...] = ("conversation", "message")

WORLD = World()
"""For properties, which make many examples; nothing of it changes."""


@given(
    level=st.sampled_from(LEVELS),
    payload=st.binary(max_size=5_000),
    answer=st.binary(max_size=5_000),
    about=st.text(max_size=100),
)
@settings(max_examples=examples(60))
def test_what_is_sealed_arrives(
    level: SealLevel, payload: bytes, answer: bytes, about: str
) -> None:
    """
    The worker has the task and its user's name, the user has the result; any bytes pass.
    """
    sealer = WORLD.sealer(level)

    opened = WORLD.opener().open(sealer.seal(payload, about))

    assert (opened.payload, opened.user, opened.about) == (payload, "ann", about)
    assert sealer.open(opened.seal(answer), about) == answer


def test_nothing_of_it_can_be_read_on_the_way(world: World, level: SealLevel) -> None:
    """
    Neither the task nor its result is in its envelope, and equal ones have unequal envelopes.
    """
    sealer = world.sealer(level)
    first, second = (sealer.seal(b"a very secret command", ABOUT) for _ in range(2))
    opened = world.opener().open(first)

    assert b"secret" not in first
    assert first[-60:] != second[-60:]
    assert b"answer" not in opened.seal(b"the secret answer")
    assert opened.seal(b"same") != opened.seal(b"same")


TASKS = {level: WORLD.sealer(level).seal(b"payload", ABOUT) for level in LEVELS}
RESULTS = {level: WORLD.opener().open(task).seal(b"result") for level, task in TASKS.items()}


@given(level=st.sampled_from(LEVELS), data=st.data())
@settings(max_examples=examples(400))
def test_any_flipped_bit_of_a_task_is_refused(level: SealLevel, data: st.DataObject) -> None:
    """
    A task that was altered on its way is not run.
    """
    with pytest.raises(SealError):
        WORLD.opener().open(_flipped(TASKS[level], data))


@given(level=st.sampled_from(LEVELS), data=st.data())
@settings(max_examples=examples(400))
def test_any_flipped_bit_of_a_result_is_refused(level: SealLevel, data: st.DataObject) -> None:
    """
    A result that was altered on its way is not believed.
    """
    with pytest.raises(SealError):
        WORLD.sealer(level).open(_flipped(RESULTS[level], data), ABOUT)


@given(
    level=st.sampled_from(LEVELS),
    cut=st.integers(min_value=1, max_value=400),
    more=st.binary(max_size=9),
)
@settings(max_examples=examples(60))
def test_a_cut_or_lengthened_envelope_is_refused(level: SealLevel, cut: int, more: bytes) -> None:
    """
    What is missing at the end, or was put there, is noticed.
    """
    for changed in (TASKS[level][:-cut] + more, TASKS[level] + (more or b"x")):
        with pytest.raises(SealError):
            WORLD.opener().open(changed)


@given(data=st.binary(max_size=300), versioned=st.booleans())
@settings(max_examples=examples(200))
def test_anything_else_is_refused_by_both_ends(data: bytes, versioned: bool) -> None:
    """
    Bytes that are no envelope raise the one error, whatever they are.
    """
    data = b"\x01" + data if versioned else data
    with pytest.raises(SealError):
        WORLD.opener().open(data)
    with pytest.raises(SealError):
        WORLD.sealer("message").open(data, ABOUT)


def test_a_task_for_other_workers_is_refused(world: World, level: SealLevel) -> None:
    """
    Workers with another key cannot open it.
    """
    with pytest.raises(SealError, match="for other workers"):
        world.opener(world.other_worker).open(world.sealer(level).seal(b"x", ABOUT))


def test_a_result_is_not_taken_for_that_of_another_task(world: World, level: SealLevel) -> None:
    """
    The service cannot hand out the result of one task as that of another.
    """
    sealer, opener = world.sealer(level), world.opener()
    first = opener.open(sealer.seal(b"x", "first"))

    with pytest.raises(SealError):
        sealer.open(first.seal(b"result"), "second")


def test_a_result_of_another_users_task_is_refused(world: World, level: SealLevel) -> None:
    """
    Ann cannot open what was sealed for Bob, nor takes it for hers.
    """
    bobs = world.opener().open(world.sealer(level, world.bob).seal(b"x", ABOUT))

    with pytest.raises(SealError):
        world.sealer(level).open(bobs.seal(b"result"), ABOUT)


def test_what_is_sent_back_is_refused(world: World, level: SealLevel) -> None:
    """
    A task is no result, and a result no task.
    """
    sealer, opener = world.sealer(level), world.opener()
    task = sealer.seal(b"x", ABOUT)
    result = opener.open(task).seal(b"y")

    with pytest.raises(SealError, match="is a task"):
        sealer.open(task, ABOUT)
    with pytest.raises(SealError, match="is a result"):
        opener.open(result)


def test_parts_of_two_envelopes_do_not_fit(world: World) -> None:
    """
    The cipher of one task under the label of another, or in another conversation, is refused.
    """
    from bursar.sealing.envelope import ConversationTask, decode, encode

    one, other = world.sealer("conversation"), world.sealer("conversation")
    first, second = decode(one.seal(b"x", "first")), decode(one.seal(b"y", "second"))
    elsewhere = decode(other.seal(b"z", "first"))
    assert isinstance(first, ConversationTask)
    assert isinstance(second, ConversationTask)
    assert isinstance(elsewhere, ConversationTask)
    world.opener().open(encode(first))

    for mixed in (
        ConversationTask(first.header, "second", first.nonce, first.box),
        ConversationTask(first.header, first.about, second.nonce, second.box),
        ConversationTask(elsewhere.header, first.about, first.nonce, first.box),
    ):
        with pytest.raises(SealError):
            world.opener().open(encode(mixed))


def test_nobody_can_sign_another_ones_task(world: World) -> None:
    """
    Bob takes Ann's locked task, puts his own certificate and signature to it, and would be sent
    the result: what is locked is bound to Ann's certificate, so it does not open.
    """
    from bursar.sealing import levels
    from bursar.sealing.envelope import MessageTask, decode, encode, encode_part, sha256_digest

    task = decode(world.sealer("message").seal(b"x", ABOUT))
    assert isinstance(task, MessageTask)
    certificate = world.bob.certificate.public_bytes(levels.Encoding.DER)
    info = encode_part(
        (
            levels._TASK,
            sha256_digest(certificate),
            task.recipient,
            task.created,
            task.expires,
            ABOUT,
        )
    )
    signature = world.bob.sign(levels._SIGNED_TASK, encode_part((info, task.box)))
    stolen = MessageTask(
        certificate, task.recipient, task.created, task.expires, ABOUT, task.box, signature
    )

    with pytest.raises(SealError, match="altered"):
        world.opener().open(encode(stolen))


def test_nobody_can_open_a_conversation_with_another_ones_secret(world: World) -> None:
    """
    Bob puts the secret that Ann has locked to the workers into a grant of his own.
    """
    import msgspec

    from bursar.sealing.envelope import (
        ConversationHeader,
        ConversationTask,
        decode,
        decode_grant,
        decode_header,
        encode,
        encode_part,
        sha256_digest,
    )

    task = decode(world.sealer("conversation").seal(b"x", ABOUT))
    assert isinstance(task, ConversationTask)
    header = decode_header(task.header)
    certificate = world.bob.certificate.public_bytes(levels.Encoding.DER)
    grant = encode_part(
        msgspec.structs.replace(decode_grant(header.grant), user=sha256_digest(certificate))
    )
    signature = world.bob.sign(levels._GRANT, grant)
    stolen = ConversationTask(
        encode_part(ConversationHeader(certificate, grant, signature)), ABOUT, task.nonce, task.box
    )

    with pytest.raises(SealError, match="altered"):
        world.opener().open(encode(stolen))


def test_a_user_of_another_authority_is_refused(world: World, level: SealLevel) -> None:
    """
    A certificate counts only if the workers' own authority made it.
    """
    stranger = issue(make_authority("test 1", NOW), "user", "ann", now=NOW)

    with pytest.raises(SealError, match="not issued by an authority"):
        world.opener().open(world.sealer(level, stranger).seal(b"x", ABOUT))


@pytest.mark.parametrize("kind", ["worker", "server"])
def test_only_users_submit(world: World, level: SealLevel, kind: str) -> None:
    """
    The certificate of a worker or a server is not that of a user.
    """
    with pytest.raises(SealError, match="not that of a user"):
        world.opener().open(world.sealer(level, world.made(kind, "ann")).seal(b"x", ABOUT))


def test_a_revoked_user_is_refused(world: World, level: SealLevel) -> None:
    """
    Whom the authority has taken back is not served.
    """
    opener = world.opener(trust=world.trust(world.ann))

    with pytest.raises(SealError, match="revoked"):
        opener.open(world.sealer(level).seal(b"x", ABOUT))
    assert opener.open(world.sealer(level, world.bob).seal(b"x", ABOUT)).user == "bob"


def test_an_expired_user_is_refused_in_the_middle_of_a_conversation(
    world: World, level: SealLevel
) -> None:
    """
    A conversation ends with its user's certificate, also where the keys are known already.
    """
    sealer, opener = world.sealer(level, world.user("eve", days=2)), world.opener()
    envelope = sealer.seal(b"x", ABOUT)
    opener.open(envelope)

    world.now += 3 * DAY

    with pytest.raises(SealError, match="expired"):
        opener.open(envelope)


def test_a_task_cannot_be_brought_up_again_after_its_time(world: World, level: SealLevel) -> None:
    """
    The service may run a task twice, but not after its lifetime; nor before it was made.
    """
    sealer, opener = world.sealer(level, lifetime=10 * DAY), world.opener()
    envelope = sealer.seal(b"x", ABOUT)

    world.now = NOW + 9 * DAY
    assert opener.open(envelope).payload == b"x"
    world.now = NOW + 11 * DAY
    with pytest.raises(SealError, match="expired, or is not good yet"):
        opener.open(envelope)
    world.now = NOW - DAY / 2
    with pytest.raises(SealError, match="expired, or is not good yet"):
        opener.open(envelope)


def test_a_long_conversation_is_followed_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    After half its lifetime, and after as many tasks as one key may seal, a new one begins: so
    tasks are always good for a while, and no nonce is likely to come twice.
    """
    monkeypatch.setattr(levels, "MOST_TASKS", 2)
    sealer = world.sealer("conversation", lifetime=10 * DAY)
    opener = world.opener()

    first, second, third = (_header(sealer.seal(b"x", ABOUT)) for _ in range(3))
    world.now += 6 * DAY
    late = sealer.seal(b"x", ABOUT)
    world.now += 6 * DAY

    assert first == second != third
    assert _header(late) != third
    assert sealer.open(opener.open(late).seal(b"y"), ABOUT) == b"y"


def test_another_process_of_the_users_opens_results(world: World, level: SealLevel) -> None:
    """
    Whoever has the user's key can fetch the results of what another process has sealed.
    """
    task = world.sealer(level).seal(b"x", ABOUT)
    result = world.opener().open(task).seal(b"result")

    assert world.sealer(level).open(result, ABOUT) == b"result"


def test_a_worker_that_was_not_certified_cannot_answer(world: World) -> None:
    """
    A result by itself counts only with the certificate of a worker that is good.
    """
    from bursar.sealing import levels

    task = hashlib.sha256(b"task").digest()
    ann = world.ann.certificate
    for worker in (
        issue(make_authority("test 1", NOW), "worker", "pool", now=NOW),
        world.bob,
    ):
        forged = levels.seal_result(worker, ann, b"result", task, ABOUT)
        with pytest.raises(SealError, match="the worker: the certificate"):
            world.sealer("message").open(forged, ABOUT)


@pytest.mark.parametrize("kind", ["user", "server"])
def test_nothing_is_sealed_to_who_is_no_worker(world: World, level: SealLevel, kind: str) -> None:
    """
    A service that shows a certificate of another kind, or a strange one, is not trusted with it.
    """
    with pytest.raises(InputError, match="not that of a worker"):
        world.sealer(level, recipient=world.made(kind, "pool").certificate)
    strange = issue(make_authority("test 1", NOW), "worker", "pool", now=NOW)
    with pytest.raises(InputError, match="not issued by an authority"):
        world.sealer(level, recipient=strange.certificate)


def test_workers_open_what_was_sealed_to_the_key_before(world: World, level: SealLevel) -> None:
    """
    After a renewal, tasks that wait still open.
    """
    renewed = world.made("worker", "pool")

    opened = world.opener(renewed, world.worker).open(world.sealer(level).seal(b"x", ABOUT))

    assert world.sealer(level).open(opened.seal(b"y"), ABOUT) == b"y"


def test_users_open_what_was_sealed_with_the_key_before(world: World, level: SealLevel) -> None:
    """
    After a renewal, results that are still to come open; others' do not.
    """
    result = world.opener().open(world.sealer(level).seal(b"x", ABOUT)).seal(b"y")
    for former, opens in (
        ((world.ann,), True),
        ((world.ann, world.bob), True),
        ((world.bob,), False),
    ):
        renewed = TaskSealer(
            world.worker.certificate,
            world.user("ann"),
            world.trust(),
            former=former,
            clock=lambda: world.now,
        )
        if opens:
            assert renewed.open(result, ABOUT) == b"y"
            continue
        with pytest.raises(SealError):
            renewed.open(result, ABOUT)


def test_what_is_too_large_is_refused(world: World, level: SealLevel) -> None:
    """
    Neither end makes or reads an envelope that is larger than the service takes.
    """
    with pytest.raises(SealError, match="larger than"):
        world.sealer(level).seal(bytes(MOST_BYTES), ABOUT)
    with pytest.raises(SealError, match="larger than"):
        world.opener().open(bytes(MOST_BYTES + 1))


def test_both_ends_come_out_of_files(world: World, tmp_path: Path) -> None:
    """
    A worker's one file, which is read again when it has changed; a user's files.
    """
    now = __import__("time").time()
    authority = make_authority("live 1", now)
    ann, worker = (issue(authority, kind, "a", now=now) for kind in ("user", "worker"))
    ca, user, workers = tmp_path / "ca.pem", tmp_path / "user.pem", tmp_path / "worker.pem"
    ca.write_bytes(certificate_pem(authority.certificate))
    user.write_bytes(identity_pem(ann))
    workers.write_bytes(identity_pem(worker) + ca.read_bytes())
    sealer = read_sealer(
        certificate_pem(worker.certificate), certificate=user, authorities=ca, level="message"
    )
    opener = TaskOpenerFile(workers)
    opened = opener.open(sealer.seal(b"x", ABOUT))
    assert sealer.open(opened.seal(b"y"), ABOUT) == b"y"

    from bursar.service.identity.issuing import make_revocation_list

    taken = make_revocation_list(authority, [ann.certificate.serial_number], 1, now)
    with workers.open("ab") as file:
        file.write(taken.public_bytes(levels.Encoding.PEM))

    with pytest.raises(SealError, match="revoked"):
        opener.open(sealer.seal(b"x", ABOUT))
    workers.unlink()
    with pytest.raises(SealError, match="cannot be read"):
        opener.open(sealer.seal(b"x", ABOUT))


def test_a_key_must_belong_to_its_certificate(world: World) -> None:
    """
    Mixed-up files are noticed when they are read.
    """
    with pytest.raises(InputError, match="does not belong"):
        Identity(world.ann.certificate, world.bob.key)


def _flipped(envelope: bytes, data: st.DataObject) -> bytes:
    bit = data.draw(st.integers(min_value=0, max_value=8 * len(envelope) - 1))
    changed = bytearray(envelope)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _header(envelope: bytes) -> bytes:
    from bursar.sealing.envelope import ConversationTask, decode

    task = decode(envelope)
    assert isinstance(task, ConversationTask)
    return task.header
