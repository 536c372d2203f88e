"""The plugin proper: one pytest session over matrix files, alone, as xdist's controller or as one of its nodes.

The controller settles the plan, creates the run file, shows progress and ends the run. Whoever runs a cell
(a node, or plain pytest) hands it to its one worker slot and appends the record. Cells never run in a pytest process.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ..cell import Cell
from ..codec import decode, encode
from ..errors import EXIT_INFRASTRUCTURE, CapmatrixError, InputError
from ..expect.expectations import Expectations
from ..outcome import Expectation, Kind
from ..store import RunWriter, StoreError
from ..workers import session as workers
from ..workers import slots
from ..workers.processes import die_with_parent
from . import ending, jobs, noderoot, runfile
from . import plan as plans
from .arguments import matrix_files
from .collect import CellItem, MatrixFile, TimesItem, times_of
from .jobs import Job, JobRecord
from .options import DEFAULT_ENGINE, read_options
from .progress import Progress
from .runner import Runner, aiter_path
from .schedule import GroupScheduling, Key
from .signals import Interrupts
from .timed import PREFIX, Timed

#: Where the controller's plan stands in a node's input.
_INPUT = "capmatrix_plan"


class MatrixPlugin:
    """State and hooks of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.options = read_options(config)
        self.is_node = hasattr(config, "workerinput")
        self.is_controller = not self.is_node and bool(getattr(config.option, "tx", None))
        self.tally = ending.Tally()
        self.progress: Progress | None = None
        self._cells: dict[Path, list[Job]] = {}
        self._plan: plans.Plan | None = None
        self._writer: RunWriter | None = None
        self._runner: Runner | None = None
        self._keys: dict[str, Key] = {}
        self._scheduler: GroupScheduling | None = None
        self._nodes: list[Any] = []
        self._interrupts = Interrupts(None if self.is_node else self._leave)
        self._others = 0
        self._told: set[str] = set()
        self._is_reporting = False
        self._expectations = Expectations()

    @property
    def plan(self) -> plans.Plan:
        """The settled plan."""
        assert self._plan is not None
        return self._plan

    @property
    def run_path(self) -> Path:
        """The run file."""
        return Path(self.plan.run_path)

    def cells_of(self, path: Path) -> list[Job]:
        """The cells of a matrix file, or the pairs of a pair file."""
        return self._cells[path]

    def record_of(self, job: Job) -> tuple[JobRecord, bool, Expectation | None]:
        """A job's record, from a worker or, resumed, from the run file; whether it was there; what was expected.

        With ``--rerun-unexpected`` one that is not as expected has been repeated, and its record says so.
        """
        slot = self._slot()
        record, resumed = slot.run(job)
        expected = self._expectations.find(record, slot.environment(record))
        if self.options.rerun_unexpected and jobs.outcome(record, expected).kind is Kind.FAILED:
            record, resumed = slot.repeat(record), False
        if not resumed:
            slot.prepare(record)
        return record, resumed, expected

    def times_of(self, rivals: list[Cell]) -> Timed:
        """Times rivals in turn; their records are written again."""
        return self._slot().time(rivals)

    def told_once(self, text: str) -> str:
        """``text``, and from the second time on its first line: what stops one server stops all its cells."""
        if text in self._told:
            return text.partition("\n")[0]
        self._told.add(text)
        return text

    def _slot(self) -> Runner:
        if self._runner is None:
            self._runner = Runner(self.plan, self.options, beside=self.is_node)
        return self._runner

    # Beginning

    def pytest_configure(self, config: pytest.Config) -> None:
        """Settle the plan before anything is shown or started, so that a mistake is one message."""
        if config.option.help or config.option.version:
            return
        try:
            if self.is_node:
                self._plan = decode(config.workerinput[_INPUT], plans.Plan)  # type: ignore[attr-defined]
            else:
                self._plan = self._settle(config)
            self._cells = plans.expand(self._plan)
            self._expectations = plans.expectations(self._plan)
        except InputError as error:
            self._end_servers()
            raise pytest.UsageError(str(error)) from None
        if self.is_controller:
            noderoot.tell_nodes(config)
        if self.is_node:
            die_with_parent(self._plan.owner)
        self._interrupts.install()

    def _settle(self, config: pytest.Config) -> plans.Plan:
        directory = config.invocation_params.dir
        files = matrix_files(config.args, directory)
        named = matrix_files([a for a in config.args if a.partition("::")[0].endswith(".toml")], directory)
        fields = plans.settle(self.options, files, named, directory)
        if not fields["files"]:
            raise InputError("no matrix file has this preset", key="--preset", value=fields["preset"])
        if fields["workloads"] and self.is_controller and config.option.dist != "load":
            raise InputError(
                "times are taken last only where cells are spread as by default (load)",
                key="--dist",
                value=config.option.dist,
            )
        aiter_path(self.options)  # a mistake in it is one message too
        session_dir = workers.create(tempfile.mkdtemp(prefix="capmatrix-"))
        return plans.Plan(**fields, session_dir=str(session_dir), owner=os.getpid())

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a node of xdist what the controller settled."""
        node.workerinput[_INPUT] = encode(self.plan).decode()
        self._nodes.append(node)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take the terminal for status lines."""
        terminal = self._terminal()
        if terminal is not None:
            self.progress = Progress(terminal.write_line, slow=self.options.engine == DEFAULT_ENGINE)

    # Collection

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> MatrixFile | None:
        """Matrix files that were asked for, and nothing else."""
        path = file_path.resolve()
        if path not in self._cells:
            return None
        collected: MatrixFile = MatrixFile.from_parent(parent, path=path)
        collected.plugin = self
        return collected

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, object, object]:
        """Where times are asked for: an item for each group of rivals among the cells that are left, after all else."""
        result = yield
        if self.plan.workloads:
            items += times_of(items)
        return result

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plain pytest: the cells are known."""
        if not self.is_node and not self.is_controller:
            cells, times = (sum(isinstance(item, kind) for item in session.items) for kind in (CellItem, TimesItem))
            self._begin(cells, times, len(session.items) - cells - times)
            terminal = self._terminal()
            if terminal is not None and not self._others:
                terminal.showfspath = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """xdist's controller: the first node has told which cells are selected."""
        if self._writer is None:
            cells, times = (sum(map(is_one, ids)) for is_one in (self._is_cell, self._is_times))
            self._begin(cells, times, len(ids) - cells - times)

    def _begin(self, cells: int, times: int, others: int) -> None:
        self.tally.selected, self._others = cells, others
        if not cells or self.config.option.collectonly:
            return
        run_plan = self.plan
        files = [Path(f) for f in run_plan.files]
        here = self.config.invocation_params.dir.resolve()
        head = runfile.header(files, here, run_plan.preset, run_plan.targets, run_plan.force, cells, run_plan.time)
        try:
            self._writer = RunWriter(run_plan.run_path, head, resume=run_plan.resume)
        except StoreError as error:
            raise pytest.UsageError(str(error)) from None
        if self.progress is not None:
            self.progress.begin(cells, times)

    # Running

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach what the controller shows; turn an unexpected pass into pytest's xpassed."""
        plain = yield
        report: Any = plain  # the attributes below travel with it from a node to the controller
        if isinstance(item, TimesItem) and call.when == "setup":
            report.capmatrix_timing = True
        elif isinstance(item, TimesItem) and call.when == "call":
            report.capmatrix_times = item.facts
            self._stop_on_trouble(item, call)
        if not isinstance(item, CellItem):
            return plain
        if call.when == "setup":
            if not self._slot().known(item.job):
                report.capmatrix_server = _server_name(item.job)
        elif call.when == "call":
            report.capmatrix = item.facts
            if item.facts is None:
                report.capmatrix_trouble = call.excinfo is not None
                self._stop_on_trouble(item, call)
            elif item.facts["kind"] == "xpassed":
                report.wasxfail = f"reason: {item.facts['text']}"
        return plain

    def _stop_on_trouble(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None and isinstance(call.excinfo.value, StoreError):
            item.session.shouldstop = f"records cannot be written: {call.excinfo.value}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: Any) -> Generator[None, object, object]:
        """A status line a finished cell, in whichever process has the terminal, instead of pytest's letter."""
        self._is_reporting = True
        try:
            result = yield
        finally:
            self._is_reporting = False
        if not self.is_node:
            self._report(report)
        return result

    def _report(self, report: Any) -> None:
        if report.when == "call" and hasattr(report, "capmatrix"):
            if report.capmatrix is None:
                self.tally.trouble += getattr(report, "capmatrix_trouble", False)
                return
            self.tally.add(report.capmatrix)
            if self.progress is not None:
                self.progress.finished(report.capmatrix)
        elif report.when == "call" and hasattr(report, "capmatrix_times"):
            self.tally.untimed += report.capmatrix_times is None
            if report.capmatrix_times is not None:
                self.tally.add_times(report.capmatrix_times)
            if self.progress is not None and report.capmatrix_times is not None:
                self.progress.timed(report.capmatrix_times)
        elif hasattr(report, "capmatrix_timing") and self.progress is not None:
            self.progress.timing()
        elif report.when == "setup" and hasattr(report, "capmatrix_server") and self.progress is not None:
            self.progress.starting(*report.capmatrix_server)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Count and name cells as pytest does; while one is reported it has a line of ours, and no letter."""
        if report.outcome == "rerun":
            return "rerun", "", ""
        if report.when != "call":
            return None
        if getattr(report, "capmatrix", None) is not None:
            kind = report.capmatrix["kind"]
        elif getattr(report, "capmatrix_times", None) is not None:
            kind = report.outcome
        else:
            return None
        return kind, "", "" if self._is_reporting else kind.upper()

    # xdist

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Cells that share a set-up stay on one node; another ``--dist`` than the default is left to xdist."""
        if config.option.dist != "load":
            return None
        everything = [job for found in self._cells.values() for job in found]
        self._keys = {jobs.name(job): Key(jobs.setup_key(job), jobs.server_key(job)) for job in everything}
        # Where there is one GPU one node times everything; the others end, and give its memory back.
        lanes = 1 if len(slots.devices()) < 2 else 0
        self._scheduler = GroupScheduling(len(config.option.tx), self._key, self._differ, self._is_times, lanes)
        return self._scheduler

    def _key(self, nodeid: str) -> Key:
        return self._keys.get(nodeid.rpartition("::")[2]) or Key(nodeid, None)

    def _is_times(self, nodeid: str) -> bool:
        return bool(self.plan.workloads) and nodeid.rpartition("::")[2].startswith(PREFIX)

    def _is_cell(self, nodeid: str) -> bool:
        if self._is_times(nodeid):
            return False
        return nodeid.rpartition("::")[2] in self._keys if self._keys else ".toml::" in nodeid

    def _differ(self, text: str) -> None:
        self.tally.trouble += 1
        self.tally.notes.append(text)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """A node died, which no cell can cause: the item it ran is tried once more."""
        if isinstance(sched, GroupScheduling):
            if sched.tried_again(crashitem):
                report.outcome = "rerun"
            elif self._is_times(crashitem):
                self.tally.untimed += 1
            else:
                self.tally.trouble += 1

    # End

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Pass Ctrl-C on to the nodes, which may not have had it, or be stopped and not have seen it."""
        self.tally.interrupted = type(excinfo.value) is KeyboardInterrupt  # not xdist stopping for --maxfail
        for node in self._nodes:
            pid = node.gateway._rinfo().pid
            if isinstance(pid, int):
                try:
                    os.kill(pid, signal.SIGINT)
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    continue

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the slot and, as controller, the run; after xdist has ended its nodes."""
        if self._runner is not None:
            self._runner.close()
        if self.is_node:
            return
        if self._writer is not None:
            status = self.tally.exit_status(int(session.exitstatus))
            try:
                if not self.tally.interrupted:
                    self._writer.end({**self.tally.summary(), "exit": status})
            except CapmatrixError as error:
                self.tally.notes.append(str(error))
                status = EXIT_INFRASTRUCTURE
            self._writer.close()
            session.exitstatus = status
        elif not self._others and not self.config.option.collectonly:
            session.exitstatus = self.tally.exit_status(int(session.exitstatus))
        self._end_servers()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The support table, where everything was written, and what there is to say of the run as a whole."""
        if self._plan is not None and self.tally.selected and self.run_path.exists():
            ending.show(terminalreporter, self.run_path, self.tally)
        elif not self.config.option.collectonly and not self._others:
            ending.verdictless(terminalreporter, self.tally)

    def pytest_unconfigure(self) -> None:
        """Give the signals back, whatever happened."""
        self._interrupts.restore()
        self._end_servers()

    def _leave(self) -> None:
        """Ctrl-C again: go at once. Nodes and servers end with this process; the run file is whole."""
        if self._plan is not None:
            shutil.rmtree(self._plan.session_dir, ignore_errors=True)

    def _end_servers(self) -> None:
        """End what is left of this session's processes, and their folder. Idempotent."""
        if self._plan is not None and not self.is_node and os.path.isdir(self._plan.session_dir):
            workers.stop(self._plan.session_dir)
            shutil.rmtree(self._plan.session_dir, ignore_errors=True)

    def _terminal(self) -> Any:
        return None if self.is_node else self.config.pluginmanager.getplugin("terminalreporter")


def _server_name(job: Job) -> tuple[str, str]:
    target, switches = jobs.server_key(job)
    words = [target, *(f"{name}={value}" for name, value in switches)]
    return " ".join(words), " with ".join([target, ", ".join(words[1:])]) if switches else target
