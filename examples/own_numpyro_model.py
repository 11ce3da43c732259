"""A model that no table can say, in NumPyro, beside tables of the same team.

Two people work at three stations. Teams differ in skill, which both of their members share;
everybody tires smoothly, slipping and changing their mind more the longer a shift goes on. A table
has a row per team and per third of the shift, and learns each on its own or, if it is hierarchical,
scattered around common ones. The NumPyro function below has one skill per team, drawn from a
population, and one slope for tiring.

The data are made up from the function with known parameters. So it is bound to win; what can be
seen is by how much, and whether it finds the parameters again.

    python examples/own_numpyro_model.py                 # 36 shifts, variational inference
    python examples/own_numpyro_model.py --method nuts   # the same by MCMC, minutes
    python examples/own_numpyro_model.py --quick         # few shifts, updates and tables
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

import btil

STATIONS, TEAMS, THIRD = 3, 12, 12
TRUTH = {"tiring": 1.5, "restless": -3.5, "haste": 1.5}
SKILL_MEAN, SKILL_SPREAD = 2.0, 1.0


def log_choice(logit, values):
    """Logs of the rows of a choice that is right with log odds `logit`, else any other value."""
    right = jax.nn.log_sigmoid(logit)[..., None, None]
    wrong = jax.nn.log_sigmoid(-logit)[..., None, None] - jnp.log(values - 1)
    return jnp.where(jnp.eye(values, dtype=bool), right, wrong)


def tiring_team(data):
    """Teams differ in a skill that their members share, and everybody tires over a shift."""
    mean = numpyro.sample("skill_mean", dist.Normal(1.0, 1.5))
    spread = numpyro.sample("skill_spread", dist.HalfNormal(1.0))
    with numpyro.plate("teams", data.num_states["team"]):
        deviation = numpyro.sample("deviation", dist.Normal())
    skill = numpyro.deterministic("skill", mean + spread * deviation)
    tiring = numpyro.sample("tiring", dist.Normal(0.0, 1.5))
    restless = numpyro.sample("restless", dist.Normal(-2.0, 1.5))
    haste = numpyro.sample("haste", dist.Normal(0.0, 1.5))

    elapsed = jnp.arange(data.num_steps) / (3 * THIRD)
    works_where_meant = skill[data.states["team"]] - tiring * elapsed
    keeps_to_it = -(restless + haste * elapsed[:-1])
    for agent in data.agents:
        data.observe(
            agent,
            log_initial=jnp.full(STATIONS, -jnp.log(STATIONS)),
            log_transition=log_choice(keeps_to_it, STATIONS),
            log_policy=log_choice(works_where_meant, STATIONS),
        )


def simulate(skill, num_shifts, seed):
    """Shifts of unequal lengths, every latent known."""
    generator = np.random.default_rng(seed)

    def chosen(meant, logit):
        off = generator.integers(1, STATIONS, np.shape(meant))
        right = generator.random(np.shape(meant)) < 1 / (1 + np.exp(-logit))
        return np.where(right, meant, (meant + off) % STATIONS)

    columns = {"shift": [], "team": [], "third": [], "meant": [], "works": []}
    for shift in range(num_shifts):
        team = shift % TEAMS
        meant = generator.integers(0, STATIONS, 2)
        for step in range(generator.integers(2 * THIRD, 3 * THIRD + 1)):
            elapsed = step / (3 * THIRD)
            if step:
                meant = chosen(meant, -(TRUTH["restless"] + TRUTH["haste"] * (elapsed - 1 / 36)))
            works = chosen(meant, skill[team] - TRUTH["tiring"] * elapsed)
            new = (shift, team, min(step // THIRD, 2), meant, works)
            for name, value in zip(columns, new, strict=True):
                columns[name].append(value)
    return btil.Demonstrations(
        states={"team": columns["team"], "third": columns["third"]},
        actions=np.array(columns["works"]),
        latents=np.array(columns["meant"]),
        episodes=columns["shift"],
        agents=("ann", "bob"),
        num_states={"team": TEAMS, "third": 3},
        num_actions=STATIONS,
        num_latents=STATIONS,
    )


def tables(policy=(), transition=(), hierarchical=False):
    """Tables of the same team; hierarchical ones have rows that are alike across contexts."""
    if hierarchical:
        return btil.TeamModel(
            policy=btil.HierarchicalDirichletCPT(parents=policy, shared_base=True),
            transition=btil.HierarchicalDirichletCPT(parents=transition, shared_base=True),
        )
    return btil.TeamModel(
        policy=btil.DirichletCPT(1.2, parents=policy),
        transition=btil.DirichletCPT(1.2, parents=transition),
    )


def main():
    """Simulate, fit, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few shifts and updates")
    parser.add_argument("--method", choices=("svi", "nuts"), default="svi")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_shifts = 12 if options.quick else 36
    skill = np.random.default_rng(options.seed).normal(SKILL_MEAN, SKILL_SPREAD, TEAMS)
    train = simulate(skill, num_shifts, options.seed + 1)
    train = train.without_labels(range(num_shifts // 3, num_shifts))
    test = simulate(skill, num_shifts, options.seed + 2)

    own = btil.NumpyroModel(tiring_team, axes={"skill": ("team",)})
    fit_options = {"seed": options.seed, "progress": False}
    if options.method == "svi":
        # With a full covariance: parameters of one logit are far from independent.
        own_options = {"guide": "AutoMultivariateNormal", "learning_rate": 0.05}
        own_options["max_iterations"] = 500 if options.quick else 5000
    else:
        own_options = {}
    by_team = {"policy": ("team", "third"), "transition": ("third",)}
    posteriors = {
        "own NumPyro model": btil.fit(own, train, options.method, **fit_options, **own_options),
        "tables": btil.fit(tables(), train, **fit_options),
        "tables by team and third": btil.fit(tables(**by_team), train, **fit_options),
    }
    if not options.quick:
        alike = tables(**by_team, hierarchical=True)
        posteriors["the same, hierarchical"] = btil.fit(alike, train, **fit_options)

    print(f"{num_shifts} shifts, a third of them labelled; {num_shifts} further ones held out:\n")
    print(f"{'':26} log likelihood a step   decoded wrongly: {'   '.join(test.agents)}   seconds")
    for name, posterior in posteriors.items():
        per_step = posterior.log_likelihood(test.without_labels()).sum() / test.num_steps
        errors = btil.analysis.hamming_distance(test, posterior)
        print(
            f"{name:26} {per_step:21.3f}   {errors[0]:20.3f} {errors[1]:5.3f} "
            f"{posterior.wall_time:9.1f}"
        )

    own_posterior = posteriors["own NumPyro model"]
    print(f"\n{own_posterior.reason}\n\nparameter    truth   posterior")
    draws = own_posterior.sample(1000)
    for name, truth in TRUTH.items():
        print(f"{name:10} {truth:7.2f} {draws[name].mean():8.2f} ± {draws[name].std():.2f}")
    mean, low, high = draws["skill"].mean(0), *np.quantile(draws["skill"], (0.055, 0.945), axis=0)
    inside = ((low < skill) & (skill < high)).sum()
    print(
        f"skill of {TEAMS} teams: correlation with the truth {np.corrcoef(mean, skill)[0, 1]:.2f}, "
        f"{inside} of {TEAMS} inside the 89% interval"
    )


if __name__ == "__main__":
    main()
