"""Runs on a real Ray cluster: nothing is lost, nothing is trained twice, whatever happens."""

import os
import signal
import warnings

import pytest

from tests.lab.runs import launch, swept, twelve

pytest.importorskip("ray", reason="needs ray: pip install 'bfno[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of machines with two cores each, processes of this one; `client` is its address."""
    # A busy machine takes long to start it, and would leave nothing to tasks that are nice.
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        # A port of its own: that of a cluster which has just ended may not be free yet.
        port = launch.free_port()
        head = {"num_cpus": 2, "ray_client_server_port": port}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.client = f"ray://127.0.0.1:{port}"  # pyright: ignore[reportAttributeAccessIssue]
    yield cluster
    cluster.shutdown()


def kill_in_the_middle(program, runs):
    """Kill a program that has given runs to Ray, and wait until one of them has saved and ended.

    Ray, which waits half a minute for such a client, ends its tasks then.
    """
    held, process = twelve.freeze_one(runs, program)
    task = twelve.parent(process)
    program.kill()
    launch.wait_for(lambda: twelve.parent(process) != task, "the end of its tasks")
    twelve.thaw(process)
    launch.wait_for(lambda: not twelve.lives(process), "the end of its trainings")
    assert not twelve.is_finished(held)


def test_twelve_runs_are_those_of_one_machine_whatever_happens(cluster, tmp_path):
    other = cluster.add_node(num_cpus=2)
    runs, address = tmp_path / "runs", cluster.address
    with twelve.program(cluster.client, runs) as first:
        kill_in_the_middle(first, runs)

    with twelve.program("ray", runs, RAY_ADDRESS=address) as second:
        # A job is killed, then a machine lost with what it had.
        _, process = twelve.freeze_one(runs, second)
        os.kill(twelve.parent(process), signal.SIGKILL)
        twelve.thaw(process)
        cluster.remove_node(other, allow_graceful=False)
        code, out, err = launch.finish(second)
    assert code == 0, out[-2000:] + err
    assert "Traceback" not in err
    twelve.assert_whole(runs, tmp_path / "alone")


def test_a_sweep_continues_with_any_program(cluster, tmp_path):
    pytest.importorskip("optuna", reason="needs optuna: pip install 'bfno[sweep]'")
    folder = tmp_path / "my sweep"
    command = swept.words(folder, cluster.client)
    with twelve.started(command) as first:
        kill_in_the_middle(first, folder)

    with twelve.started(command) as second:
        trial, process = twelve.freeze_one(folder, second)
        second.send_signal(signal.SIGINT)  # it ends the tasks, which save first
        launch.wait_for(lambda: twelve.is_told(process), "the end of the task")
        twelve.thaw(process)
        code, _, err = launch.finish(second)
    assert code == 130 and err.splitlines()[-1].endswith("the same command continues from here")
    assert not twelve.is_finished(trial)

    with twelve.started(command) as third:
        code, out, err = launch.finish(third)
    assert code == 0 and "Traceback" not in err, out + err
    assert out.startswith(f"The best of {swept.TRIALS} finished trials of digits/bfno-node is")
    swept.assert_whole(folder, tmp_path / "alone")


@pytest.mark.parametrize("through", ["client", "driver"])
def test_a_cluster_that_goes_away_is_reported_and_nothing_is_lost(cluster, tmp_path, through):
    pytest.importorskip("optuna", reason="needs optuna: pip install 'bfno[sweep]'")
    folder = tmp_path / "sweep"
    named = {} if through == "client" else {"RAY_ADDRESS": cluster.address}
    engine = "ray" if named else cluster.client
    with twelve.started(swept.words(folder, engine), **named) as first:
        _, process = twelve.freeze_one(folder, first)
        cluster.shutdown()
        twelve.thaw(process)
        code, out, err = launch.finish(first)
    assert code != 0 and "Traceback" not in err, out + err
    last = err.splitlines()[-1]
    assert "--on ray: the cluster no longer answers" in last, err
    assert "start it again" in last

    with twelve.started(swept.words(folder, "local")) as second:
        code, out, err = launch.finish(second)
    assert code == 0 and "Traceback" not in err, out + err
    swept.assert_whole(folder, tmp_path / "alone")
