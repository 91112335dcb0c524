"""Random programs of tensor operations, views and in-place steps, and what torch does with them.

A program is a function of a, b (2, 4, 4), floating, and a bool mask (4, 4). Every value it makes stays in use (the loss sums them all), so whatever an
in-place step destroys, backward wants.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

HEADER = "import torch\nimport torch.nn.functional as F\n\n\n"

UNARY = (
    "{u}.exp() torch.tanh({u}) torch.sigmoid({u}) {u}.relu() F.gelu({u}) F.silu({u}) {u}.abs() {u}.sin() {u}.square() -{u} {u}*0.5 {u}+1 {u}/3 2-{u} "
    "{u}**2 {u}.pow(3) {u}.clamp(min=-0.5) {u}.softmax(-1) F.softmax({u},dim=-1) F.log_softmax({u},dim=-1) {u}.cumsum(-1) {u}.clone() "
    "F.layer_norm({u},{u}.shape[-1:]) {u}.mean(-1,keepdim=True) {u}.sum(-1,keepdim=True) {u}.amax(-1,keepdim=True) {u}.norm(dim=-1,keepdim=True) "
    "F.dropout({u},0.25) F.leaky_relu({u}) F.elu({u}) F.softplus({u}) F.logsigmoid({u}) F.hardtanh({u}) {u}.logsumexp(-1,keepdim=True) {u}.erf() "
    "{u}.std(-1,keepdim=True) F.normalize({u},dim=-1) ({u}.abs()+1).sqrt() ({u}.abs()+1).rsqrt() ({u}.abs()+1).log() {u}.masked_fill(mask,0.5) {u}.tril() "
    "{u}.flip(0) {u}.repeat(1,1,2) {u}.roll(1,-1) {u}.sort(-1)[0] {u}.topk(2,-1)[0] {u}.max(-1,keepdim=True)[0] torch.where(mask,{u},0.0) {u}.expm1() "
    "{u}.cos() {u}.sign() {u}.round() F.pad({u},(1,1)) {u}.gather(-1,{u}.argsort(-1)) {u}.index_select(0,torch.tensor([0])) {u}.prod(-1,keepdim=True)"
).split()
BINARY = (
    "{u}+{v} {u}-{v} {u}*{v} {u}/({v}.abs()+1) torch.maximum({u},{v}) torch.minimum({u},{v}) {u}@{v} torch.matmul({u},{v}.transpose(-2,-1)) torch.bmm({u},{v}) "
    "torch.einsum('bij,bjk->bik',{u},{v}) torch.where(mask,{u},{v}) torch.atan2({u},{v}) torch.cat([{u},{v}],-1) torch.stack([{u},{v}]) torch.addcmul({u},{v},{u}) "
    "torch.lerp({u},{v},0.3) F.mse_loss({u},{v}) torch.hypot({u},{v}) {u}*{v}.detach() F.linear({u},{v}[0]) torch.dist({u},{v}) {u}.masked_fill({v}>0,0.1) "
    "torch.baddbmm({u},{v},{v}) F.scaled_dot_product_attention({u}[None],{v}[None],{v}[None]) F.cosine_similarity({u},{v},dim=-1)"
).split()
VIEWS = (
    "{u}[0] {u}[:,1:3] {u}[...,0] {u}[...,1:] {u}.transpose(-2,-1) {u}.mT {u}.view(-1) {u}.reshape(-1) {u}.unsqueeze(0) {u}.squeeze() {u}.narrow(-1,0,1) {u}.detach() "
    "{u}.contiguous() {u} {u}.flatten(-2) {u}.select(0,1) {u}.diagonal(dim1=-2,dim2=-1) {u}.to(torch.float64) F.dropout({u},0.5,training=False) {u}.permute(1,0,2) "
    "{u}.type_as(a) {u}.view_as({u}) {u}.movedim(0,-1) {u}.unfold(-1,2,1) {u}.swapaxes(0,1)"
).split()
PARTS = (
    "{u}.chunk(2,dim=-1) {u}.split(2,dim=-1) {u}.unbind(0) torch.chunk({u},2,dim=0) {u}.tensor_split(2,-1) {u}".split()
)
INPLACE = (
    "{u}.mul_(0.5) {u}.add_(1) {u}.exp_() {u}.tanh_() {u}.relu_() {u}.sigmoid_() {u}.zero_() {u}.fill_(0.5) {u}[0]=1.0 {u}[...,0]+=1 {u}.masked_fill_(mask,0.0) {u}+=1 "
    "{u}.clamp_(min=0) F.relu({u},inplace=True) {u}.pow_(2) {u}.neg_() {u}.sin_() {u}-=0.5 {u}/=2 {u}.abs_() F.silu({u},inplace=True) F.leaky_relu_({u}) torch.sigmoid_({u})"
).split()
INPLACE_BINARY = (
    "{u}+={v} {u}*={v} {u}-={v} {u}.add_({v}) {u}.mul_({v}) {u}.copy_({v}) {u}[0]={v}[0] {u}.addcmul_({v},{v}) {u}.sub_({v},alpha=2) {u}[...,:1]*={v}[...,:1] {u}/={v}.abs()+1 "
    "{u}.lerp_({v},0.5) torch.add({u},{v},out=x_out) {u}[{v}>0]=0.0 {u}.masked_fill_({v}>0,0.0)"
).split()


@dataclass(frozen=True)
class Program:
    source: str

    def __str__(self) -> str:
        return self.source


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(2, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    return a, b


def scope(gradients: bool) -> dict[str, object]:
    """Arguments: not leaves, since nobody can tell from inside whether a leaf came in."""
    a, b = (t.requires_grad_(gradients) for t in inputs())
    return {"torch": torch, "F": F, "a": a * 1.0, "b": b * 1.0, "mask": torch.eye(4, dtype=torch.bool)}


@st.composite
def programs(draw: st.DrawFn, steps: int = 9) -> Program:
    """Statements are kept if they run without gradients: shapes fit, memory can be written."""
    names, lines = ["a", "b"], ["a, b = a * 1.0, b * 1.0"] if draw(st.booleans()) else []
    state = scope(False)
    with torch.no_grad():
        for number in range(draw(st.integers(3, steps))):
            kind = draw(
                st.sampled_from(
                    [
                        "unary",
                        "unary",
                        "binary",
                        "binary",
                        "view",
                        "parts",
                        "inplace",
                        "inplace",
                        "inplace2",
                        "no_grad",
                        "constant",
                        "boolean",
                    ]
                )
            )
            u, v = (draw(st.sampled_from(names)) for _ in range(2))
            new = f"x{number}"
            made: list[str] = [new]
            if kind == "parts":
                made = [f"{new}_0", f"{new}_1"]
                line = f"{made[0]}, {made[1]} = " + draw(st.sampled_from(PARTS)).format(u=u)
            elif kind == "inplace":
                line, made = draw(st.sampled_from(INPLACE)).format(u=u), []
            elif kind == "inplace2":
                line, made = draw(st.sampled_from(INPLACE_BINARY)).format(u=u, v=v), []
            elif kind == "no_grad":
                line, made = f"with torch.no_grad():\n    {draw(st.sampled_from(INPLACE[:8])).format(u=u)}", []
            elif kind == "constant":
                line = f"{new} = torch.full_like({u}, 0.5)"
            elif kind == "boolean":
                line = (
                    f"{new} = {u} > 0\n{new}_1 = {v}.masked_fill({new}, 0.2)\n{new}.logical_not_()"
                    if draw(st.booleans())
                    else f"{new}_1 = {v}.masked_fill({u} > 0, 0.2)"
                )
                made = [f"{new}_1"]
            else:
                choice = {"unary": UNARY, "binary": BINARY, "view": VIEWS}[kind]
                line = f"{new} = " + draw(st.sampled_from(choice)).format(u=u, v=v)
            try:
                exec(line, state)
            except (RuntimeError, IndexError, ValueError, NameError, TypeError):
                continue
            names += made
            lines.append(line)
    returned = ", ".join(names)
    body = textwrap.indent("\n".join([*lines, f"return [{returned}]"]), "    ")
    return Program(f"{HEADER}def program(a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor):\n{body}\n")


def torch_raises(program: Program) -> str:
    """What torch says about an in-place change, in forward or backward; "" if it says nothing."""
    space: dict[str, object] = {}
    exec(program.source, space)
    state = scope(True)
    try:
        results = space["program"](state["a"], state["b"], state["mask"])  # type: ignore[operator]
        sum((t.sum() for t in results if t.requires_grad), torch.zeros((), requires_grad=True)).backward()
    except RuntimeError as error:
        if "inplace" in str(error) or "in-place" in str(error):
            return str(error)
        raise
    return ""
