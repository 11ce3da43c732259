"""Which latents nothing distinguishes: renaming them leaves the model on its data as it is."""

import numpy as np

from btil.models.parametric import parameter_axes, parametric_site
from btil.models.team import BoundModel


def agents_with_common_latents(bound: BoundModel) -> list[list[str]]:
    """Agents in sets that have latents in common: by shared tables, or parameters of their rows."""
    teams = [[agent] for agent in bound.demos.agents]
    sharing = {name: list(table.agents) for name, table in bound.tables.items()}
    for table in bound.tables.values():
        for parameter, site in parametric_site(table).parameters if table.parametric else ():
            if {"latent", "next_latent"} & set(parameter_axes(table, parameter)):
                sharing.setdefault(site, []).extend(table.agents)
    for agents in sharing.values():
        joined = [team for team in teams if set(team) & set(agents)]
        if len(joined) > 1:
            teams = [team for team in teams if team not in joined]
            teams.append([agent for team in joined for agent in team])
    return teams


def interchangeable_classes(bound: BoundModel) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Classes of latents that nothing distinguishes, per agent.

    Two latents of an agent are in one class if neither is ever labelled, weights of annotations are
    the same for both, and swapping them leaves every prior and every given table as it is; every
    permutation within the classes leaves the model as it is. Agents that have latents in common
    have classes in common: what tells latents of one apart speaks for all of them.

    Args:
        bound: The model on its data.

    Returns:
        {agent: classes}; each latent is in exactly one class, mostly alone.
    """
    demos = bound.demos
    sizes = dict(zip(demos.agents, demos.num_latents, strict=True))
    classes: dict[str, tuple[tuple[int, ...], ...]] = {}
    for agents in agents_with_common_latents(bound):
        columns = [demos.agents.index(agent) for agent in agents]
        labelled = np.isin(np.arange(sizes[agents[0]]), demos.latents[:, columns])
        weights = [demos.latent_weights[a] for a in agents if a in demos.latent_weights]
        channels = [bound.channels[agent] for agent in agents if agent in bound.channels]
        sites = {site for agent in agents for site in bound.sites(agent)}
        own: list[list[int]] = []
        for latent in range(sizes[agents[0]]):
            for members in own if not labelled[latent] else []:
                first = members[0]
                if (
                    not labelled[first]
                    and all((one[:, first] == one[:, latent]).all() for one in weights)
                    and _swap_changes_nothing(bound, sites, first, latent)
                    and all(one.family.exchangeable_latents(first, latent) for one in channels)
                ):
                    members.append(latent)
                    break
            else:
                own.append([latent])
        found = tuple(tuple(members) for members in own)
        classes |= dict.fromkeys(agents, found)
    # In the order of the agents, not of the teams.
    return {agent: classes[agent] for agent in demos.agents}


def _swap_changes_nothing(bound: BoundModel, sites: set[str], first: int, second: int) -> bool:
    """Whether all priors and given tables are the same with two latents swapped."""
    return all(
        bound.tables[site].cpt.exchangeable_latents(bound.tables[site].contexts, first, second)
        for site in sites
    )
