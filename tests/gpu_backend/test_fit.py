"""Fits: from made-up kernels back to what they were made of, and tables where they are there."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_backend import tables
from gpu_backend.fit import fit_roofline, times
from sim.errors import ConfigError
from sim.extras import is_installed
from sim.hardware.gpu_profile import GpuProfile


def test_a_roofline_is_found_again():
    """Kernels that take max(F / .7, B / .9) + 5 us, with 5 % noise."""
    rng = np.random.default_rng(0)
    flops, moved = 10 ** rng.uniform(-6, -3, (2, 2000))
    clean = np.maximum(flops / 0.7, moved / 0.9) + 5e-6
    fit = fit_roofline(flops, moved, clean * rng.lognormal(0, 0.05, 2000))
    assert fit.compute == pytest.approx(0.7, rel=0.02)
    assert fit.memory == pytest.approx(0.9, rel=0.02)
    assert fit.constant_s == pytest.approx(5e-6, rel=0.05)
    assert fit.mape == pytest.approx(0.04, abs=0.005)  # the mean of |noise|
    assert np.allclose(times(fit, flops, moved), clean, rtol=0.05)


def test_factors_lie_between_the_points_that_were_measured():
    """In proportion to the logarithm; outside of them the nearest holds."""
    profile = GpuProfile(
        source="x", tflops=1, gb_per_s=1, memory_gib=1, gemm_factors={"1": 1.0, "4": 2.0, "16": 1.0}
    )
    factors = [profile.gemm_factor(n) for n in (1, 2, 4, 8, 16, 99)]
    assert factors == pytest.approx([1.0, 1.5, 2.0, 1.5, 1.0, 1.0])


@pytest.mark.skipif(is_installed(tables.PACKAGE), reason="the tables are there")
def test_without_the_tables_it_says_what_to_install():
    with pytest.raises(ConfigError, match=r"pip install 'kvsim\[latency-data\]'"):
        tables.fits("h200")


@pytest.mark.skipif(not is_installed(tables.PACKAGE), reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize("gpu", tables.SYSTEMS)
def test_the_profiles_are_what_the_tables_give(gpu):
    """Fitted anew, the committed numbers come out."""
    profile, found = GpuProfile.read(gpu), tables.fits(gpu)
    for name, value in found.items():
        if name != "fits":
            assert getattr(profile, name) == pytest.approx(value, abs=2e-3), name
