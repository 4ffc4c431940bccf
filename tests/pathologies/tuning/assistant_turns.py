"""An assistant that answers requests in turns: it reads the conversation and chooses a tool, whose answer is added."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
WIDTH, TOOLS, SESSIONS, TURNS = 128, 5, 25, 12


class Assistant(nn.Module):
    """A reader of texts and a choice of tools."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, batch_first=True)
        self.reader = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.choice = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.tool = nn.Linear(WIDTH, TOOLS)

    def read(self, text: Tensor) -> Tensor:
        """One vector for a message, (1, WIDTH)."""
        return self.reader(self.words(text)[None]).mean(1)  # spent: repeated-work

    def choose(self, messages: list[Tensor]) -> int:
        """The tool to call after these messages."""
        _, state = self.choice(torch.stack(messages, dim=1))
        return int(self.tool(state[0]).argmax())


def conversation(assistant: Assistant, session: int) -> int:
    """Answer one request; returns the last tool."""
    words = torch.Generator().manual_seed(session)
    history = [torch.randint(1000, (60,), generator=words)]
    read: list[Tensor] = []
    tool = 0
    for _ in range(TURNS):
        if FIXED:
            read.append(assistant.read(history[-1]))
        else:
            read = [assistant.read(message) for message in history]  # spent: repeated-work # change: repeated-work
        tool = assistant.choose(read)
        history.append(torch.randint(1000, (20 + 12 * tool,), generator=words))
    return tool


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    assistant = Assistant().eval()
    for session in range(SESSIONS):
        print(session, conversation(assistant, session))


if __name__ == "__main__":
    main()
