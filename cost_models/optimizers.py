"""What an optimizer keeps and moves per parameter.

Sources: PyTorch ``torch/optim/adamw.py``, ``sgd.py``, ``_adafactor.py`` (the kernels of each version);
Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861 (blocks with one fp32 maximum
each); Shazeer and Stern, "Adafactor", arXiv:1804.04235 (row and column statistics only);
Jordan, "Muon" (github.com/KellerJordan/Muon: momentum, then five Newton-Schulz steps in bf16; AdamW for embedding and
head).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cluster_specs.errors import UnknownName

QUANTIZATION_BLOCK = 256
"""Elements that share one fp32 scale in 8-bit states (pytorch/ao ``torchao/optim/adam.py``; 2048 in the paper)."""

NEWTON_SCHULZ_STEPS = 5
"""Iterations of Muon's orthogonalisation (github.com/KellerJordan/Muon, ``muon.py``)."""


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """One optimizer: bytes of state per parameter, and accesses of its update."""

    states: int
    """Values kept per parameter, master weights apart."""
    unfused_accesses: float | None = None
    """Elements read or written per parameter, kernel by kernel; None: it only exists as one kernel."""
    fusable: bool = True
    """A version in one kernel exists."""
    quantized: bool = False
    """States are 8-bit with one fp32 scale per block."""
    in_place: bool = False
    """All kernels write to what they read, so that a version of several needs no temporaries."""
    states_of_ends: int | None = None
    """Values kept per parameter of embedding and head, where another optimizer steps these."""
    wide_tables: bool = False
    """States of tables that are looked up are fp32 all the same."""
    reads_gradient_once: bool = False
    """One operator reads the gradient: what cuts a part from its sum is the only one that does."""
    orthogonalises: bool = False
    """The update multiplies matrices, so that its FLOPs depend on their shapes."""

    @property
    def further_at_ends(self) -> float:
        """State of embedding and head over that of as many other parameters, minus one."""
        return 0.0 if self.states_of_ends is None else self.states_of_ends / self.states - 1

    @property
    def further_at_tables(self) -> float:
        """State of tables over that of as many other parameters, minus one."""
        return 4 * self.states / self.state_bytes() - 1 if self.wide_tables else 0.0

    def state_bytes(self, stepped: float = 4.0) -> float:
        """Kept per parameter [bytes], for weights stepped in ``stepped`` bytes (4: fp32 masters)."""
        return self.states * (1 + 4 / QUANTIZATION_BLOCK if self.quantized else stepped)


OPTIMIZERS: Mapping[str, OptimizerRule] = MappingProxyType(
    {
        # mul_ p; lerp_ m,g; mul_ v; addcmul_ v,g,g; sqrt v; div_ and add_ the root; addcdiv_ p,m,root
        "adamw": OptimizerRule(states=2, unfused_accesses=2 + 3 + 2 + 4 + 2 + 2 + 2 + 4),
        "adamw8bit": OptimizerRule(states=2, quantized=True),
        "adamw_bnb_8bit": OptimizerRule(states=2, quantized=True, wide_tables=True),
        # momentum mul_; momentum add_ g; p add_ momentum
        "sgd": OptimizerRule(states=1, unfused_accesses=2 + 3 + 3, in_place=True, reads_gradient_once=True),
        # p add_ g
        "plain-sgd": OptimizerRule(states=0, unfused_accesses=3, in_place=True, reads_gradient_once=True),
        # no first moment; the second is a row and a column per matrix, lost beside it:
        # norm p; mul_ p; two norms g; outer; div_, clamp_, rsqrt_ it; mul_ g; norm; add_ p
        "adafactor": OptimizerRule(
            states=0, unfused_accesses=1 + 2 + 2 + 1 + 2 + 2 + 2 + 3 + 1 + 3, fusable=False
        ),
        # lerp_ m,g; lerp_ g,m; cast, norm, divide, scale in 16 bits; mul_ p; add_ p
        "muon": OptimizerRule(
            states=1,
            unfused_accesses=3 + 3 + 1.5 + 0.5 + 1 + 1 + 2 + 2.5,
            fusable=False,
            states_of_ends=2,
            orthogonalises=True,
        ),
    }
)
"""By the names of ``planner.plans.Optimizer``; ``sgd`` is with momentum, ``plain-sgd`` without.

``adamw8bit`` is torchao's, or bitsandbytes' by itself; ``adamw_bnb_8bit`` the latter as transformers' ``Trainer`` makes
it (5.24.0 ``trainer.py``: ``register_module_override(module, "weight", {"optim_bits": 32})`` of every embedding).
"""


def optimizer_rule(name: str) -> OptimizerRule:
    """The rule of an optimizer; raises ``UnknownName``."""
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]


def update_bytes(
    name: str, weight_bytes: float, grad_bytes: float, master_weights: bool, fused: bool
) -> float:
    """Bytes read and written per parameter by one optimizer step.

    Fused, the gradient is read once, states and the stepped weights (masters, where there are any) are read
    and written, and the low-precision copy is written: ``grad + 2 (states + stepped) + copy``. Otherwise, or
    where no fused version exists, every kernel reads and writes its operands.
    """
    rule = optimizer_rule(name)
    has_copy = master_weights and weight_bytes < 4
    stepped, copy = (4.0, weight_bytes) if has_copy else (weight_bytes, 0.0)
    if rule.unfused_accesses is None or (fused and rule.fusable):
        return grad_bytes + 2 * (rule.state_bytes(stepped) + stepped) + copy
    return stepped * rule.unfused_accesses + copy


def newton_schulz_flops(rows: int, columns: int, steps: int = NEWTON_SCHULZ_STEPS) -> float:
    """FLOPs to orthogonalise one matrix: ``steps (4 m^2 n + 2 m^3)`` with ``m`` the shorter side.

    Each step is ``A = X X^T`` (2 m^2 n), ``B = b A + c A^2`` (2 m^3) and ``a X + B X`` (2 m^2 n).
    """
    short, long = sorted((rows, columns))
    return steps * (4.0 * short * short * long + 2.0 * short**3)
