"""What a heart rate says of a mind, beside the actions: a Gaussian channel.

Two nurses watch a ward. Each is calm or alarmed, looks, calls or acts accordingly, and wears a belt
that counts heart beats a minute and now and then loses contact. A table has no place for a number
like that. The NumPyro function below has: `log_likelihood` of `data.observe` is the log density of
whatever else a latent explains at a step. Everybody has a heart rate of their own, learned with the
rest; alarm raises it.

The recordings are made up with known parameters; few of their steps are labelled. The same function
without hearts stands beside it. At the end one shift is followed live, step by step.

    python examples/heart_rate.py           # 20 shifts, variational inference
    python examples/heart_rate.py --quick   # few shifts, few updates
"""

import argparse

import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

import btil

NURSES, MINDS, DEEDS = ("ann", "bob"), ("calm", "alarmed"), ("look", "call", "act")
REST, RISE, SPREAD, STAY = {"ann": 62.0, "bob": 78.0}, 14.0, 6.0, 0.92
POLICY = np.array([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]])
LOST = 0
"""What the belt says without contact."""


def ward(data, hearts=True):
    """Nurses whose hearts beat faster when they are alarmed."""
    stay = numpyro.sample("stay", dist.Beta(9.0, 1.0))
    rows = dist.Dirichlet(jnp.ones(len(DEEDS))).expand([len(MINDS)]).to_event(1)
    policy = numpyro.sample("policy", rows)
    move = jnp.where(jnp.eye(len(MINDS), dtype=bool), stay, 1 - stay)
    start = jnp.log(jnp.full(len(MINDS), 1 / len(MINDS)))
    if hearts:
        # In units of what is expected: a fit starts near 0, and beats do not.
        rise = 15 * numpyro.sample("rise", dist.LogNormal(0.0, 0.5))
        spread = 8 * numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
    for nurse in data.agents:
        measured = None
        if hearts:
            rest = 70 + 10 * numpyro.sample(f"rest_{nurse}", dist.Normal())
            beats = data.states[f"beats_{nurse}"][..., None]
            density = dist.Normal(rest + rise * jnp.arange(len(MINDS)), spread)
            # No contact tells nothing: a likelihood of 1, whatever is in mind.
            measured = jnp.where(beats == LOST, 0.0, density.log_prob(beats))
        data.observe(nurse, start, jnp.log(move), jnp.log(policy), log_likelihood=measured)


def ward_without_hearts(data):
    """The same nurses, seen only to act."""
    ward(data, hearts=False)


def simulate(num_shifts, seed):
    """Shifts of unequal lengths, every latent known."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(20, 31, num_shifts)
    steps = lengths.sum()
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths) == np.arange(steps)
    minds, deeds, beats = (np.zeros((steps, len(NURSES)), int) for _ in range(3))
    for i, nurse in enumerate(NURSES):
        for step in range(steps):
            if starts[step]:
                minds[step, i] = generator.integers(len(MINDS))
            else:
                minds[step, i] = minds[step - 1, i] ^ (generator.random() > STAY)
            deeds[step, i] = generator.choice(len(DEEDS), p=POLICY[minds[step, i]])
            pulse = generator.normal(REST[nurse] + RISE * minds[step, i], SPREAD)
            beats[step, i] = LOST if generator.random() < 0.1 else round(pulse)
    return btil.Demonstrations(
        states={f"beats_{nurse}": beats[:, i] for i, nurse in enumerate(NURSES)},
        actions=deeds,
        latents=minds,
        episodes=np.repeat(np.arange(num_shifts), lengths),
        agents=NURSES,
        num_states={f"beats_{nurse}": 200 for nurse in NURSES},
        num_actions=len(DEEDS),
        num_latents=len(MINDS),
        action_names=dict.fromkeys(NURSES, DEEDS),
        latent_names=dict.fromkeys(NURSES, MINDS),
    )


def with_few_labels(demos, share, seed):
    """Labels of a share of the steps; the others are dropped."""
    kept = np.random.default_rng(seed).random(demos.latents.shape) < share
    return demos.replace(latents=np.where(kept, demos.latents, -1))


def follow(posterior, shift):
    """Watch one shift as it happens."""
    tracker = posterior.tracker()
    print("\nLive, a step of the first shift each line (beats; probability of alarm; truth):")
    for step in range(min(8, shift.num_steps)):
        state = {name: values[step] for name, values in shift.state_variables.items()}
        belief = tracker.update(state, shift.actions[step])
        said = (
            f"{nurse} {DEEDS[shift.actions[step, i]]:4} {state[f'beats_{nurse}'] or '--':>3} "
            f"{belief.latents[nurse][1]:.2f} {MINDS[shift.latents[step, i]]:7}"
            for i, nurse in enumerate(NURSES)
        )
        print("  " + "   ".join(said))


def main():
    """Simulate, fit, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few shifts, few updates")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_shifts = 6 if options.quick else 20
    train = with_few_labels(simulate(num_shifts, options.seed + 1), 0.1, options.seed)
    test = simulate(num_shifts, options.seed + 2)

    posteriors = {
        name: btil.fit(
            btil.NumpyroModel(function),
            train,
            "svi",
            seed=options.seed,
            progress=False,
            learning_rate=0.05,
            max_iterations=500 if options.quick else 5000,
        )
        for name, function in (("with hearts", ward), ("without", ward_without_hearts))
    }
    print(f"{num_shifts} shifts, a tenth of the steps labelled; {num_shifts} others decoded:\n")
    print(f"{'':12} decoded wrongly: {'   '.join(NURSES)}")
    for name, posterior in posteriors.items():
        errors = btil.analysis.hamming_distance(test, posterior.decode(test.without_labels()))
        print(f"{name:12} {errors[0]:20.3f} {errors[1]:5.3f}")

    print("\nparameter   truth   posterior")
    draws = posteriors["with hearts"].sample(1000)
    learned = {"stay": draws["stay"], "rise": 15 * draws["rise"], "spread": 8 * draws["spread"]}
    learned |= {f"rest_{nurse}": 70 + 10 * draws[f"rest_{nurse}"] for nurse in NURSES}
    truth = {"stay": STAY, "rise": RISE, "spread": SPREAD}
    truth |= {f"rest_{nurse}": beats for nurse, beats in REST.items()}
    for name, values in learned.items():
        print(f"{name:9} {truth[name]:7.2f} {values.mean():8.2f} ± {values.std():.2f}")
    follow(posteriors["with hearts"], test.select([0]))


if __name__ == "__main__":
    main()
