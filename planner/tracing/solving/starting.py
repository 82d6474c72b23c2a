"""A warm start: a choice without second runs, said in a setting that has them. All is kept as its first run made it."""

from collections.abc import Iterator, Mapping, Sequence

from planner.tracing.solving.nodes import AgainOption, Copy, CopyOption, NodeOption, Nodes, Slot, left_layout
from planner.tracing.solving.options import Option
from planner.tracing.solving.recomputing import Again
from planner.tracing.solving.setting import Setting


def with_all_kept(nodes: Nodes, chosen: Sequence[NodeOption], setting: Setting) -> dict[int, int] | None:
    """What ``chosen``, an option per each of the ``nodes``, means for the network of ``setting``: group -> option.

    None where it cannot be said there, or takes more memory than there is.
    """
    first_copy = len(nodes.inputs) + len(nodes.operations)
    found = [*chosen[:first_copy], *_copies(nodes, chosen, setting.nodes)]
    for again in setting.nodes.agains:
        first = found[len(nodes.inputs) + again.operation]
        assert isinstance(first, Option)
        found.append(_kept(again, first))
    found += chosen[nodes.first_joint :]
    try:
        fits = setting.estimate(found).memory_bytes <= setting.memory_limit
        places = [tuple(options).index(o) for o, options in zip(found, setting.problem.options, strict=True)]
    except ValueError:
        return None
    choice = dict(zip(setting.problem.group, places, strict=True))
    agree = all(choice[g] == at for g, at in zip(setting.problem.group, places, strict=True))
    return choice if fits and agree else None


def _kept(again: Again, first: Option) -> AgainOption:
    """What late readers have of an operator that runs once."""
    if all(v.last_own < 0 for v in again.values):
        return AgainOption()  # only second runs want it, of which there are none
    return AgainOption(kept=first.writes, shared=not again.for_others)


def _copies(nodes: Nodes, chosen: Sequence[NodeOption], wanted: Nodes) -> Iterator[NodeOption]:
    """Options of the copies that are ``wanted``; of those that second runs have for themselves, none is held.

    Where early and late readers shared one, either part of them has one that lies so.
    """
    first_copy = len(wanted.inputs) + len(wanted.operations)
    known = list(zip(_owners(nodes), chosen[first_copy : nodes.first_again], strict=True))
    of_several = [(copy, o) for (copy, own), o in known if own is None]
    of_one = {own: o for (_, own), o in known if own is not None}
    sources = {link.target: link.source for link in wanted.links if link.copied}
    for k, (copy, own) in enumerate(_owners(wanted)):
        if own is None:
            yield next(o for whole, o in of_several if _holds(whole, copy))
        elif own in of_one:
            yield of_one[own]
        else:
            source = sources[Slot(first_copy + k, 0)]
            layout = left_layout(chosen[source.node], source.place)
            assert layout is not None
            yield CopyOption(layout, held=False)


def _holds(whole: Copy, part: Copy) -> bool:
    """Whether readers of ``part`` are among those of ``whole``."""
    return whole.value == part.value and whole.first <= part.first and part.last <= whole.last


def _owners(nodes: Nodes) -> Iterator[tuple[Copy, Slot | None]]:
    """The copies, and who has one for itself."""
    first_copy = len(nodes.inputs) + len(nodes.operations)
    owners: Mapping[Slot, Slot] = {link.source: link.target for link in nodes.links if link.own}
    return ((copy, owners.get(Slot(first_copy + k, 0))) for k, copy in enumerate(nodes.copies))
