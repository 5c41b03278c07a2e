"""Runs on a real Ray cluster: nothing is lost, nothing is trained twice, whatever happens."""

import os
import signal
import warnings

import pytest

from tests.lab.runs import launch, twelve

pytest.importorskip("ray", reason="needs ray: pip install 'bfno[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of machines with two cores each, which are processes of this one."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")  # on a busy machine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    yield cluster
    cluster.shutdown()


def test_twelve_runs_are_those_of_one_machine_whatever_happens(cluster, tmp_path):
    other = cluster.add_node(num_cpus=2)
    runs, address = tmp_path / "runs", cluster.address
    with twelve.program("ray", runs, RAY_ADDRESS=address) as first:
        held, process = twelve.freeze_one(runs)
        first.kill()
    # The program that gave the runs is gone; what was at work saves and ends.
    twelve.thaw(process)
    launch.wait_for(lambda: not twelve.lives(process), "the end of its trainings")
    assert not twelve.is_finished(held)

    with twelve.program("ray", runs, RAY_ADDRESS=address) as second:
        # A job is killed, then a machine lost with what it had.
        _, process = twelve.freeze_one(runs)
        os.kill(twelve.parent(process), signal.SIGKILL)
        twelve.thaw(process)
        cluster.remove_node(other, allow_graceful=False)
        code, out, err = launch.finish(second)
    assert code == 0, out[-2000:] + err
    assert "Traceback" not in err
    twelve.assert_whole(runs, tmp_path / "alone")
