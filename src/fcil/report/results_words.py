"""What the results page says around its tables; braces are filled in by `results_page`."""

from __future__ import annotations

HEAD = """\
# Results

Made by a command from committed records and from nothing else; the same records give the same page,
byte for byte:

    {command}

Numbers are in percent unless their column says otherwise: mean ± sample standard deviation over
seeds. **The seeds stand in brackets behind them and lead to their `record.json`.** A_T is the mean
accuracy over all tasks after the last one, A_avg the mean over all stages, F_T the forgetting.
*MiB up* is what one client sends over the whole run after the first stage, measured on the encoded
messages; *after* is the time of everything behind the first stage, without what only a simulation
measures. Every row names its recipe, and thus its command:

    fcil run RECIPE --set data.root=DIR --set seed=S

A run counts for a recipe when its settings are the recipe's, the seed and the place of the data
aside; any other says what it changes. Rows that are compared are taken over the seeds that all of
them have, where there are such."""

MAIN = """\
Rows are a method and a family of recipes. Columns say how uneven the clients are; the large first
task has 50 classes, ten tasks of five follow, at beta 0.5. A recipe's name is its family,
`cifar100`, the method and the column, joined by hyphens, such as `{example}`. The paper's rows are
its Tables 1 and 4: ResNet-18, means without deviations."""

PRINTED = """\
A_avg / A_T / F_T of "{title}" ([arXiv {arxiv}](https://arxiv.org/abs/{arxiv})), Tables 1 and 4,
ResNet-18. Its other methods are quoted for context and were not run here. By its Table 5, on
CIFAR-100, a client sends {stsa} MiB (STSA) or {stsa_e} MiB (STSA-E); with LANDER it sends and
receives {lander:,} MiB."""

CURVES = "Means over seeds; bands reach from the least to the greatest seed."

COSTS = """\
{data}, T = 10, K = 5, beta 0.5. Vertical bars reach from the least to the greatest seed. The
paper's marks stand at the upload that its Table 5 gives. Devices: {devices}."""

LADDER = """\
STSA on {data}, T = 10, K = 5, beta 0.5, from the least A_T to the greatest. The columns before it
are settings of `first_stage`, `features` and `method` in which rows differ: how the network was
trained, which layers are read and on what grid (*pool*), views of the image, whitened patches, and
the width M of the random layer (`method.projection`)."""

ESTIMATE = """\
Relative to the exact G of the whole run, which a simulation sums beside the estimate, outside all
byte counts. *Units counted* is `method.count`: for each class those that hold it (`holders`), or
all, as published."""

BITS = """\
Features rounded to integers of so many bits; 0 = real numbers, as published. Rows of a table differ
in nothing else but how the statistics travel."""

HELD_OUT = """\
Held-out error by gamma, as a multiple of G's mean diagonal, after the last task; mean over seeds,
the least in bold:"""

CODE = """\
The paper's Table 1 prints an A_T of {printed} for STSA on CIFAR-100 at beta 0.5.

- The settings that its text states, `{published}`: {ours}.
- The settings of its public code, `{code}`: {theirs}.

Text and code are two experiments, and they differ where it matters:

- **Head of the first stage.** The text names none; the code trains a cosine head without bias, with
  a learned scale. The head is thrown away afterwards, but every later task rests on the network
  that was trained through it.
- **Learning rate.** The text implies a constant rate on CIFAR-100; the code lets it fall to zero
  along a cosine, so that the last of the 100 rounds change little.
- **Prediction.** The text takes the largest score phi W; the code first brings each class's column
  of W to length one, which is another classifier from the same sums.
- **Units of STSA-E.** The proof needs every unit to hold every class. The code counts all units,
  empty ones too, so the scatter of a class that few units hold comes out too small; a large ridge
  hides it.
- **Ridge, M and K_D.** The values committed in the code (1e6, 10000, 5) differ from those that
  the paper states for this table; both families of recipes take the paper's.

The full list, setting by setting, is in docs/methods/stsa.md and docs/methods/stsa-e.md."""

RUNS = """\
One row a run group. It is made again by `fcil run RECIPE` with each changed setting as
`--set key=value`, or by `fcil run` with the path of one of its records, which needs no recipe."""
