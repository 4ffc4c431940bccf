"""A Lightning GAN with manual optimization: two optimizers, both toggled, samples drawn twice per step."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Generator(nn.Sequential):
    """Noise to a picture of 32 x 32."""

    def __init__(self, latent: int) -> None:
        super().__init__(
            nn.Linear(latent, 64 * 8 * 8),
            nn.Unflatten(1, (64, 8, 8)),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
            nn.Tanh(),
        )


class Critic(nn.Sequential):
    """A picture to a score."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 1),
        )


class Gan(pl.LightningModule):
    """The two networks and their losses."""

    def __init__(self, latent: int = 64) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.generator = Generator(latent)
        self.critic = Critic()

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        (real,) = batch
        g, d = self.optimizers()
        z = torch.randn(len(real), self.latent)

        self.toggle_optimizer(d)
        with torch.no_grad():
            fake = self.generator(z)
        loss_d = nn.functional.softplus(-self.critic(real)).mean() + nn.functional.softplus(self.critic(fake)).mean()
        d.zero_grad()
        self.manual_backward(loss_d)
        d.step()
        self.untoggle_optimizer(d)

        self.toggle_optimizer(g)
        loss_g = nn.functional.softplus(-self.critic(self.generator(z))).mean()
        g.zero_grad()
        self.manual_backward(loss_g)
        g.step()
        self.untoggle_optimizer(g)
        self.log_dict({"g": loss_g, "d": loss_d})

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
            for net in (self.generator, self.critic)
        ]


pl.seed_everything(0, verbose=False)
pictures = torch.rand(48 * 64, 1, 32, 32) * 2 - 1
trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Gan(), DataLoader(TensorDataset(pictures), batch_size=64, shuffle=True))
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
