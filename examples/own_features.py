"""STSA on your own features: two hospitals, one classifier, no features leave the house."""

import numpy as np

from fcil import FeatureMap, Moments, decode, encode, solve

rng = np.random.default_rng(0)
centres = rng.normal(size=(6, 20))


def client(classes, rows=300):
    """Stands for what your own network gives, one row a sample, and class ids."""
    labels = rng.choice(classes, rows)
    return centres[labels] + 0.5 * rng.normal(size=(rows, 20)), labels


(X1, y1), (X2, y2), (new, truth) = client([0, 1, 2]), client([2, 3, 4]), client(range(5))

phi = FeatureMap.for_features(20, 500, seed=7, largest=8.0)  # the same on every client
first = encode(Moments.of(phi(X1), y1))  # bytes: this is all that travels
second = encode(Moments.of(phi(X2), y2))
total = decode(first) + decode(second)  # the sums over all rows, bit for bit
head = solve(total, gamma="0.003r")
accuracy = (head.predict(phi(new)).numpy() == truth).mean()
print(f"{len(first) + len(second):,} bytes up, accuracy {accuracy:.1%}")

pooled = Moments.of(phi(np.vstack([X1, X2])), np.hstack([y1, y2]))
assert total.hash == pooled.hash
left = total - decode(first)  # the first client leaves: nothing of it stays behind
assert left.hash == decode(second).hash and accuracy > 0.95
print(f"after the first client left: {left.rows} rows, {left.hash[:16]}")
