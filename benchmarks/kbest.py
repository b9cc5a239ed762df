"""Exact decoding against its peers: ratios measured in one run.

Peers: a batched list-Viterbi in torch (one topk over L * K per step), beam search with K = 100 in numpy (the
paper's decoder), the 1-best decoders of pytorch-crf and python-crfsuite, and one pass of a transformer encoder.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from _claims import claim

from conformal import Chain, LabelSpace, Potentials, entity_marginals, kbest, warm_up

N, K, BATCH = 25, 100, 64


def chain_of(classes: int) -> tuple[LabelSpace, Chain]:
    space = LabelSpace([f"c{i}" for i in range(classes)])
    L = len(space)
    rng = np.random.default_rng(classes)
    return space, Chain(
        transitions=np.where(space.allowed, rng.normal(size=(L, L)) * 0.5, -np.inf),
        start=np.where(space.allowed_start, rng.normal(size=L) * 0.5, -np.inf),
        end=rng.normal(size=L) * 0.5,
    )


def texts(space: LabelSpace, chain: Chain, peaked: bool, count: int, length: int = N) -> list[Potentials]:
    """Peaked: one label per token leads by about 8 nats, as a trained tagger's do. Flat: plain noise."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        emissions = rng.normal(size=(length, len(space)))
        if peaked:
            emissions[np.arange(length), rng.integers(0, len(space), length)] += 8.0
        made.append(chain.potentials(emissions))
    return made


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """Best of a few runs: the machine is noisy, and noise only adds."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def list_viterbi(batch: list[Potentials], k: int) -> torch.Tensor:
    """Keep the k best prefixes per label: no loop over sentences, one topk over L * K per step."""
    emissions = torch.tensor(np.stack([p.emissions for p in batch]))  # (B, N, L)
    transitions = torch.tensor(batch[0].transitions)  # (L, L)
    B, length, L = emissions.shape
    scores = torch.full((B, L, k), -torch.inf, dtype=torch.float64)
    scores[:, :, 0] = torch.tensor(batch[0].start) + emissions[:, 0]
    pointers = []
    for j in range(1, length):
        ways = scores.transpose(1, 2)[:, :, :, None] + transitions[None, None]  # (B, K, from, to)
        flat = ways.permute(0, 3, 1, 2).reshape(B, L, k * L)  # (B, to, K * from)
        scores, index = flat.topk(k, dim=2)
        scores = scores + emissions[:, j, :, None]
        pointers.append(index)
    final = (scores + torch.tensor(batch[0].end)[None, :, None]).reshape(B, L * k)
    _, index = final.topk(k, dim=1)
    label, rank = index // k, index % k  # (B, K)
    labels = [label]
    for back in reversed(pointers):
        came = back.reshape(B, L * k).gather(1, label * k + rank)
        rank, label = came // L, came % L
        labels.append(label)
    return torch.stack(labels[::-1], dim=2)  # (B, K, N)


def beam_search(p: Potentials, k: int) -> np.ndarray:
    """The paper's decoder: k prefixes in all, extended by every label, cut to the k best."""
    L = p.label_count
    scores = p.start + p.emissions[0]
    paths = np.arange(L)[:, None]
    for j in range(1, p.length):
        ways = scores[:, None] + p.transitions[paths[:, -1]] + p.emissions[j][None]  # (beam, L)
        flat = ways.ravel()
        kept = np.argpartition(-flat, min(k, flat.size) - 1)[:k]
        scores = flat[kept]
        paths = np.concatenate([paths[kept // L], (kept % L)[:, None]], axis=1)
    scores = scores + p.end[paths[:, -1]]
    return paths[np.argsort(-scores, kind="stable")]


def against_list_viterbi_and_beam() -> None:
    print(f"\nexact {K}-best, N = {N}, batches of {BATCH}; peers' speed beside the ratio")
    for classes in (4, 18):
        space, chain = chain_of(classes)
        for peaked in (True, False):
            batch = texts(space, chain, peaked, BATCH)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                ours = seconds(lambda batch=batch, threads=threads: kbest(batch, K, threads=threads), 7) / BATCH
                peer = seconds(lambda batch=batch: list_viterbi(batch, K), 2) / BATCH
                line = (
                    f"L={len(space):2d} {'peaked' if peaked else 'flat  '} threads={threads}: "
                    f"ours {ours * 1e6:6.0f} us | list-Viterbi (torch) {peer * 1e6:8.0f} us = {peer / ours:6.1f}x"
                )
                if threads == 1:
                    beam = seconds(lambda batch=batch: [beam_search(p, K) for p in batch], 2) / BATCH
                    line += f" | beam (numpy) {beam * 1e6:6.0f} us = {beam / ours:5.1f}x"
                    what = f"exact {K}-best, {len(space)} labels, {'peaked' if peaked else 'flat'}"
                    wanted = 20 if classes == 4 else 200
                    claim(what, peer="list-Viterbi in torch", ratio=peer / ours, at_least=wanted)
                    claim(what, peer="beam search in numpy, which is not exact", ratio=beam / ours, at_least=6)
                print(line)
            exact = kbest(batch, K)
            agree = [
                np.array_equal(list_viterbi([p], K)[0].numpy(), result.labels)
                for p, result in zip(batch[:8], exact[:8], strict=True)
            ]
            wrong = sum(
                {tuple(y) for y in beam_search(p, K).tolist()} != {tuple(y) for y in result.labels.tolist()}
                for p, result in zip(batch, exact, strict=True)
            )
            print(f"      list-Viterbi agrees with ours on {sum(agree)}/8; beam's top {K} is wrong for {wrong}/{BATCH}")
    torch.set_num_threads(1)


def crfsuite_tagger(space: LabelSpace, directory: Path) -> tuple[object, list[list[dict[str, float]]]]:
    """Train a python-crfsuite model that has all L labels; its decoder's cost does not depend on the weights."""
    import pycrfsuite

    rng = np.random.default_rng(0)
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"max_iterations": 2, "feature.possible_transitions": True, "feature.possible_states": True})
    for _ in range(30):
        labels = [space.labels[i] for i in rng.integers(0, len(space), 40)]
        trainer.append([{f"w{rng.integers(20)}": 1.0} for _ in labels], labels)
    model = str(directory / "peer.crfsuite")
    trainer.train(model)
    tagger = pycrfsuite.Tagger()
    tagger.open(model)
    sequences = [[{f"w{rng.integers(20)}": 1.0} for _ in range(N)] for _ in range(BATCH)]
    return tagger, [pycrfsuite.ItemSequence(sequence) for sequence in sequences]


def against_one_best() -> None:
    import torchcrf

    print(f"\n1-best with its probability, N = {N}, batches of {BATCH}, one thread (ratio > 1: ours is faster)")
    for classes in (4, 18):
        space, chain = chain_of(classes)
        batch = texts(space, chain, True, BATCH)
        ours = seconds(lambda batch=batch: kbest(batch, 1, threads=1), 9) / BATCH
        crf = torchcrf.CRF(len(space), batch_first=True)
        emissions = torch.tensor(np.stack([p.emissions for p in batch]), dtype=torch.float32)
        with torch.no_grad():
            peer = seconds(lambda crf=crf, emissions=emissions: crf.decode(emissions), 5) / BATCH
        with tempfile.TemporaryDirectory() as directory:
            tagger, sequences = crfsuite_tagger(space, Path(directory))
            suite = seconds(lambda t=tagger, s=sequences: [t.tag(x) for x in s], 9) / BATCH  # type: ignore[attr-defined]
        print(
            f"L={len(space):2d}: ours {ours * 1e6:5.1f} us | pytorch-crf {peer * 1e6:6.1f} us = {peer / ours:5.1f}x"
            f" | python-crfsuite {suite * 1e6:6.1f} us = {suite / ours:5.1f}x"
        )
        claim(f"1-best with its probability, {len(space)} labels", peer="pytorch-crf", ratio=peer / ours, at_least=1)


def against_encoder() -> None:
    import transformers

    print("\n100-best with log partition, and all span marginals, as a share of one encoder pass, one thread")
    configurations = {
        "BERT-base": transformers.BertConfig(),
        "6 layers x 384": transformers.BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        ),
    }
    for name, configuration in configurations.items():
        torch.manual_seed(0)
        encoder = transformers.BertModel(configuration).eval()
        ids = torch.randint(5, 1000, (8, 32))
        with torch.no_grad():
            whole = seconds(lambda encoder=encoder, ids=ids: encoder(ids), 4) / 8
        for classes in (4, 18):
            space, chain = chain_of(classes)
            batch = texts(space, chain, True, 8, length=32)

            def decode(batch: list[Potentials] = batch, space: LabelSpace = space) -> None:
                kbest(batch, K, space=space, threads=1)
                entity_marginals(batch, space, threads=1)

            ours = seconds(decode, 9) / 8
            print(f"{name:15s} L={len(space):2d}: {ours * 1e6:5.0f} us of {whole * 1e3:6.1f} ms = {ours / whole:.3%}")
            wanted = 0.005 if name == "BERT-base" else 0.03
            what = f"{K}-best and all marginals, {len(space)} labels"
            claim(what, peer=f"one pass of {name}", ratio=ours / whole, at_most=wanted)


def resident(key: str) -> int:
    """Return VmRSS or VmHWM of this process in kB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


def memory_of_one_thread() -> None:
    """Peak memory of one decode at k = 1000, L = 37, N = 60, in a process of its own."""
    space, chain = chain_of(18)
    [text] = texts(space, chain, False, 1, length=60)
    kbest(text, 2)
    ctypes.CDLL(None).malloc_trim(0)  # give freed memory back, so that what the decode takes is seen
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    assert kbest(text, 1000).count == 1000
    used = resident("VmHWM") - before
    print(f"\nmemory of one thread at k=1000, L=37, N=60: {used / 1024:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true", help="only the memory figure")
    if parser.parse_args().memory:
        memory_of_one_thread()
        return
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, numpy {np.__version__}, torch {torch.__version__}")
    warm_up()
    against_list_viterbi_and_beam()
    against_one_best()
    against_encoder()
    subprocess.run([sys.executable, __file__, "--memory"], check=True)


if __name__ == "__main__":
    main()
