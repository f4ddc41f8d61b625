"""What a chart is drawn from, as JSON values: kind, data, style and language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from openafm.data.drawing.charts.styles import ChartStyle
from openafm.data.drawing.data_tables import DataTable
from openafm.data.drawing.fonts import Font


@dataclass(frozen=True, kw_only=True)
class ChartSpec:
    """A chart before it is drawn."""

    kind: str
    table: DataTable
    style: ChartStyle
    language: str

    def to_json(self) -> dict[str, object]:
        table = asdict(self.table) | {"values": [[str(value) for value in row] for row in self.table.values]}
        return {"kind": self.kind, "language": self.language, "table": table, "style": asdict(self.style)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> ChartSpec:
        table, style = values["table"], values["style"]
        return ChartSpec(
            kind=values["kind"],
            language=values["language"],
            table=DataTable(
                title=table["title"],
                dimension=table["dimension"],
                rows=tuple(table["rows"]),
                columns=tuple(table["columns"]),
                values=tuple(tuple(Decimal(value) for value in row) for row in table["values"]),
                measure=table["measure"],
                is_total=table["is_total"],
            ),
            style=ChartStyle(**(style | {"colors": tuple(style["colors"]), "font": Font(**style["font"])})),
        )
