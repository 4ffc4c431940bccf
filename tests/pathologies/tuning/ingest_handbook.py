"""Retrieval over a handbook: its documents are cut into pieces and embedded, then questions are answered."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
DOCUMENTS, PIECES, LENGTH, QUESTIONS, TOGETHER = 60, 8, 40, 30, 32


@dataclass
class Document:
    title: str
    tokens: Tensor

    def pieces(self) -> Iterator[Tensor]:
        """Its tokens, cut into pieces of equal length."""
        yield from self.tokens.split(LENGTH)


class Encoder(nn.Module):
    """A small transformer whose outputs are averaged."""

    def __init__(self, vocabulary: int = 1000, width: int = 96, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.normalize(self.body(self.embed(tokens)).mean(1), dim=1)  # spent: loop-over-samples


@dataclass
class Store:
    """Vectors, and where they are from."""

    vectors: list[Tensor] = field(default_factory=list)
    sources: list[tuple[str, int]] = field(default_factory=list)

    def put(self, vectors: Tensor, sources: list[tuple[str, int]]) -> None:
        self.vectors.append(vectors)
        self.sources += sources

    def nearest(self, question: Tensor, count: int = 3) -> list[tuple[str, int]]:
        return [self.sources[row] for row in (torch.cat(self.vectors) @ question).topk(count).indices.tolist()]


class Assistant:
    """Ingests documents, and finds the pieces that a question is about."""

    def __init__(self) -> None:
        self.encoder, self.store = Encoder().eval(), Store()

    @torch.inference_mode()
    def embed(self, pieces: list[Tensor]) -> Tensor:
        return self.encoder(torch.stack(pieces))  # spent: loop-over-samples

    def ingest(self, documents: list[Document]) -> None:
        """Put all pieces of all documents into the store."""
        named = [
            ((document.title, number), piece)
            for document in documents
            for number, piece in enumerate(document.pieces())
        ]
        if FIXED:
            for start in range(0, len(named), TOGETHER):
                sources, pieces = zip(*named[start : start + TOGETHER], strict=True)
                self.store.put(self.embed(list(pieces)), list(sources))
        else:
            for source, piece in named:  # change: loop-over-samples
                self.store.put(self.embed([piece]), [source])  # spent: loop-over-samples # change: loop-over-samples

    def ask(self, question: Tensor) -> list[tuple[str, int]]:
        return self.store.nearest(self.embed([question])[0])


def refreshes(count: int) -> Iterator[list[Document]]:
    """The handbook's versions, each of which is ingested anew."""
    for version in range(count):
        yield [Document(f"v{version}/{number}", torch.randint(1000, (PIECES * LENGTH,))) for number in range(DOCUMENTS)]


def main() -> None:
    torch.manual_seed(0)
    assistant = Assistant()
    for documents in refreshes(16):
        assistant.ingest(documents)  # spent: loop-over-samples
    found = [assistant.ask(torch.randint(1000, (LENGTH,))) for _ in range(QUESTIONS)]
    print(f"{len(assistant.store.sources)} pieces, first answer {found[0]}")


if __name__ == "__main__":
    main()
