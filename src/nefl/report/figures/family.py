"""A picture of a family: which blocks and how much width each submodel keeps, and its cost."""

from collections.abc import Sequence

from nefl.nesting.price import SubmodelProfile
from nefl.nesting.spec import Family
from nefl.report.figures.vega import Figure, Spec
from nefl.wording import show_bytes, show_count


def family_figure(family: Family, profiles: Sequence[SubmodelProfile], title: str) -> Figure:
    """Draw a bar for each block of each submodel, as wide as the block's share of channels."""
    records = []
    for spec, profile in zip(family.specs, profiles, strict=True):
        cost = (
            f"{show_count(profile.params)} params, {show_count(profile.macs_total)} MACs, "
            f"{show_bytes(profile.payload_bytes)}"
        )
        label = f"{profile.index}: γ {profile.gamma:.2f}"
        for stage, blocks in enumerate(spec.blocks):
            for block, step in enumerate(blocks):
                kept = spec.block_width(stage, block) if step > 0 else 0.0
                records.append(
                    {
                        "submodel": label,
                        "cost": cost,
                        "block": f"{stage + 1}.{block}",
                        "stage": f"stage {stage + 1}",
                        "kept": round(kept, 4),
                        "state": "kept" if kept else "skipped",
                        "low": -kept / 2,
                        "high": kept / 2,
                    }
                )
    return Figure("family", title, _about(title), _picture(records), records)


def _about(title: str) -> str:
    return (
        f"{title}: a column for each residual block, as high as the share of channels that the "
        "submodel keeps of it; a gap where it skips the block."
    )


def _picture(records: Sequence[dict[str, object]]) -> Spec:
    blocks = list(dict.fromkeys(record["block"] for record in records))
    step = max(6, min(26, 620 // max(1, len(blocks))))
    x: Spec = {
        "field": "block",
        "type": "nominal",
        "sort": blocks,
        "axis": {"title": "stage.block", "labelAngle": -60, "labelOverlap": True},
    }
    width = {"axis": None, "scale": {"domain": [-0.5, 0.5]}}
    row = {
        "field": "submodel",
        "type": "nominal",
        "sort": None,
        "header": {"title": None, "labelAngle": 0, "labelAlign": "left", "labelFontSize": 12},
    }
    return {
        "title": None,
        "facet": {"row": row},
        "spacing": 6,
        "spec": {
            "width": step * len(blocks),
            "height": 56,
            "layer": [
                {  # what the full model would have there
                    "mark": {"type": "bar", "color": "#8a8f96", "opacity": 0.16},
                    "encoding": {
                        "x": x,
                        "y": {"datum": -0.5, "type": "quantitative", **width},
                        "y2": {"datum": 0.5},
                    },
                },
                {
                    "transform": [{"filter": "datum.kept > 0"}],
                    "mark": {"type": "bar", "tooltip": True},
                    "encoding": {
                        "x": x,
                        "y": {"field": "low", "type": "quantitative", **width},
                        "y2": {"field": "high"},
                        "color": {
                            "field": "stage",
                            "type": "nominal",
                            "legend": {"title": None, "orient": "bottom"},
                        },
                    },
                },
                {
                    "transform": [{"aggregate": [], "groupby": ["submodel", "cost"]}],
                    "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 11},
                    "encoding": {
                        "x": {"value": step * len(blocks)},
                        "y": {"value": 28},
                        "text": {"field": "cost"},
                    },
                },
            ],
        },
    }
