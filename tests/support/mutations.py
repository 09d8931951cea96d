"""One-line changes that break the product, each with the test that must turn red: see tests/mutants.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `file`, `old` becomes `new`. It must stand there once."""

    file: str
    old: str
    new: str
    test: str
    """The test that must fail, below tests/."""

    def applied(self, text: str) -> str:
        """The file's text with the change."""
        assert text.count(self.old) == 1, f"{self.file}: {self.old!r} stands there {text.count(self.old)} times"
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {self.old} -> {self.new} [{self.test}]"


def switched_off(file: str, condition: str, test: str) -> Mutant:
    """A check that never finds anything."""
    return Mutant(file, f"if {condition}:", "if False:", test)


LAYOUTS = (
    Mutant("repack/layout.py", "-(-nbytes // ALIGNMENT) * ALIGNMENT", "nbytes", "test_layout.py::test_align"),
    Mutant("repack/layout.py", '("ql", 128, 0), ("qh", 64, 128)', '("qh", 64, 128), ("ql", 128, 0)', "test_layout.py"),
    Mutant("repack/layout.py", '32, ("qs", 32, 2, "i8"),', '32, ("qs", 32, 0, "i8"),', "test_layout.py"),
    Mutant("repack/rows.py", "zeros[...] = 0", "pass", "test_layout.py"),
    Mutant("repack/rows.py", "quant.block_bytes :] = 0", "quant.block_bytes :] = 1", "test_layout.py"),
    Mutant("repack/rows.py", "items[...] = blocks[name]", "items[...] = blocks[name][:, ::-1]", "test_layout.py"),
    Mutant("repack/rows.py", "bits >= 0x7C00", "bits > 0x7C00", "test_layout.py"),
    Mutant("repack/rows.py", "np.array_equal(flat[0][words:], flat[1][words:])", "True", "test_layout.py"),
)
FILES = (
    Mutant(
        "repack/files/output.py",
        "os.fsync(self.fd)",
        "pass",
        "hostile/test_crash.py::test_what_is_written_is_durable_before_it_has_its_name",
    ),
    Mutant(
        "repack/files/output.py",
        "os.fsync(folder)",
        "pass",
        "hostile/test_crash.py::test_what_is_written_is_durable_before_it_has_its_name",
    ),
    Mutant(
        "repack/files/partial.py",
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "hostile/test_races.py::test_a_file_being_written_is_left_alone",
    ),
    Mutant(
        "repack/files/output.py",
        "self._partial.unlink(missing_ok=True)",
        "pass",
        "test_restore.py::test_a_damaged_sidecar_is_refused_and_nothing_left",
    ),
    switched_off("repack/files/output.py", "not self._replace", "test_convert.py::test_an_existing_file_needs_force"),
    switched_off("repack/files/output.py", "_is(target, path)", "test_convert.py::test_output_that_is_the_input"),
    switched_off(
        "repack/files/reading.py",
        "stamp(fd) != self._files[number][1]",
        "test_convert.py::test_a_source_that_changes_meanwhile_is_refused",
    ),
    Mutant("repack/files/signals.py", "_State.held += 1", "_State.held += 0", "test_signals.py"),
    Mutant("repack/files/signals.py", 'SIGTTOU", "SIGURG"', 'SIGTTOU", "SIGUSR2", "SIGURG"', "test_signals.py"),
    Mutant(
        "repack/convert.py",
        "if not same_bytes(native, back) or any(",
        "if any(",
        "test_convert.py::test_what_reads_back_differently_is_refused",
    ),
)
MODELS = (
    switched_off(
        "repack/gguf/index.py",
        "tensor.offset < end",
        "test_gguf_index.py::test_a_tensor_that_is_converted_shares_no_byte",
    ),
    switched_off(
        "repack/gguf/index.py",
        "(tensor.offset - shard.data_offset) % shard.alignment",
        "test_gguf_index.py::test_what_is_converted_has_to_make_sense",
    ),
    switched_off("repack/gguf/index.py", "total != len(all_tensors)", "hostile/test_models.py"),
    switched_off("repack/gguf/index.py", "tensor.name in seen", "hostile/test_models.py"),
    Mutant(
        "repack/plan.py",
        "for pattern in unwanted)",
        "for pattern in wanted)",
        "test_convert.py::test_selection_and_census",
    ),
)


def refused(check: str) -> str:
    """The test of files that fail this check of docs/format.md."""
    return f"test_readers.py::test_broken_headers_are_refused[project-{check}]"


SIDECARS = (
    Mutant("repack/sidecar/checks.py", "if root.text(DIGEST_KEY) != digest_of(", "if not digest_of(", refused("C6")),
    Mutant(
        "repack/sidecar/checks.py",
        'version.integer("major")) != FORMAT_MAJOR',
        'version.integer("major")) > 9',
        refused("C5"),
    ),
    Mutant("repack/sidecar/checks.py", "if item.integer(key) != expected:", "if not expected:", refused("C10")),
    switched_off(
        "repack/sidecar/checks.py", r'not set("/\\\0").isdisjoint(name) or name in {"", ".", ".."}', refused("C11")
    ),
    switched_off("repack/sidecar/checks.py", "entry.name in names", refused("C12")),
    switched_off("repack/sidecar/container.py", "text != expected", refused("C13")),
    switched_off("repack/sidecar/container.py", "size != end", refused("C14")),
    Mutant("repack/sidecar/canonical.py", "if lone or canonical(", "if canonical(", refused("C4")),
    Mutant(
        "repack/sidecar/canonical.py",
        "type(value) is not int or value < 0:",
        "not isinstance(value, int):",
        refused("C8"),
    ),
    switched_off(
        "repack/restore.py",
        "digest.hexdigest() != entry.sha256",
        "test_restore.py::test_a_damaged_sidecar_is_refused_and_nothing_left",
    ),
    Mutant(
        "docs/consumers/python/reader.py",
        "require(not any(row[used:at])",
        "require(True",
        "test_readers.py::test_damaged_data_is_found[python-C16]",
    ),
)
COMMANDS = (
    Mutant("gguf_dpl/__init__.py", "sys.excepthook = _failed", "pass", "test_start.py"),
    Mutant("repack/errors.py", "exit_code = 3", "exit_code = 1", "test_cli.py::test_exit_codes"),
    Mutant("repack/errors.py", r'text.replace("##", r"#\x23")', "text", "test_report_outside.py"),
    Mutant("repack/errors.py", "text.isascii() and text.isprintable()", "text.isascii()", "hostile/test_screen.py"),
    Mutant("repack/command/streams.py", "self._failure = error", "pass", "test_delivery.py"),
    Mutant("repack/command/streams.py", "self.asked or self._failure", "self._failure", "test_delivery.py"),
    Mutant("repack/command/ending.py", "return code or undelivered()", "return code", "test_delivery.py"),
    Mutant("repack/command/ending.py", "return failure.exit_code", "return 1", "test_cli.py::test_exit_codes"),
    Mutant("repack/command/ledger.py", "(nbytes - native) / nbytes", "(nbytes - native) / native", "test_types.py"),
    switched_off(
        "repack/command/report_files.py",
        "head and not _MARKS[kind].match(head)",
        "test_report_files.py::test_what_is_no_report_of_ours_stays",
    ),
    switched_off(
        "repack/command/report_files.py", "_same(one, two)", "test_report_files.py::test_two_names_of_one_file"
    ),
    switched_off(
        "repack/command/report_files.py",
        "path != STDOUT and Path(path).exists()",
        "test_report_files.py::test_a_run_that_is_killed_leaves_no_report_of_an_earlier_one",
    ),
    switched_off("repack/command/report_files.py", "len(to_stdout) > 1", "test_report_files.py"),
    Mutant(
        "repack/command/main.py",
        "except Exception as error:",
        "except UsageError as error:",
        "test_report_files.py::test_the_json_is_there_whatever_goes_wrong",
    ),
    Mutant(
        "verify/reports/delivery.py",
        "return code or failed",
        "return code",
        "test_report_files.py::test_a_report_that_does_not_fit",
    ),
    Mutant("verify/reports/page.py", "autoescape=True", "autoescape=False", "test_report_outside.py"),
    Mutant("verify/reports/markdown.py", "_code(stage.detail)", "stage.detail", "test_report_outside.py"),
    Mutant("verify/reports/junit.py", "outcome.exit_code == Differs.exit_code", "True", "test_report_outside.py"),
    Mutant("verify/reports/speeds.py", "return all(", "return any(", "test_report_speeds.py"),
    Mutant(
        "verify/reports/summary.py",
        '"sound" if verdict.model is None else "proven"',
        '"proven"',
        "test_report.py::test_a_sidecar_alone_is_never_called_proven",
    ),
)
CONTRACT = (
    Mutant(
        "verify/contract/emulation.py",
        "warps[..., :half] + warps[..., half:]",
        "warps[..., ::2] + warps[..., 1::2]",
        "test_emulation.py",
    ),
    Mutant(
        "verify/contract/emulation.py",
        "bits & 0x7FFFFFFF > 0x7F800000",
        "bits & 0x7FFFFFFF > 0x7FC00000",
        "test_emulation.py",
    ),
    Mutant("verify/contract/activations.py", "0x1400, 0x2C00", "0x1400, 0x2C01", "test_activations.py"),
    Mutant(
        "verify/contract/quants/q6_k.py", ".astype(np.float64) - 32", ".astype(np.float64) - 31", "test_emulation.py"
    ),
    Mutant(
        "verify/contract/quants/q8_0.py",
        'single(fields["d"]) * scales_of(vectors)',
        'single(fields["d"]) * 1',
        "test_emulation.py",
    ),
    Mutant(
        "verify/kernels/quants/q6_k.cuh",
        "4 * (k & ~1u)",
        "4 * k",
        "test_kernels_on_host.py::test_row[row(32,1,128)-(1, 2, 3, 5, 7, 8)]",
    ),
    Mutant(
        "verify/kernels/quants/q6_k.cuh",
        "F(QH, 1, 64, 128)",
        "F(QH, 1, 64, 127)",
        "test_kernels.py::test_what_a_type_s_file_says_is_what_the_table_says",
    ),
    Mutant(
        "verify/kernels/layouts.cuh",
        "(bytes * n + 15) / 16 * 16",
        "bytes * n",
        "test_kernels_on_host.py::test_row_of_every_type[row(32,1,128)-(1, 2, 3, 5, 7)-Q5_0]",
    ),
)
STAGES = (
    Mutant("verify/stages/contents.py", "if wrong is None:", "if True:", "test_verify.py"),
    Mutant("verify/stages/contents.py", "if not entry.nbytes:", "if False:", "test_vacuous.py"),
    switched_off(
        "verify/stages/contents.py", "not same_bytes(native, back)", "test_verify.py::test_a_flipped_byte_is_named"
    ),
    switched_off("verify/stages/contents.py", "found.first_pad", "test_verify.py::test_padding_that_is_not_zero"),
    Mutant("verify/stages/contents.py", "elif found.padding:", "elif True:", "test_vacuous.py"),
    switched_off("verify/stages/decode.py", "not np.array_equal(found, expected)", "test_decode.py"),
    switched_off("verify/stages/decode.py", "wrong is not None", "test_decode.py"),
    Mutant("verify/stages/decode.py", "if worst <= TOLERANCE:", "if True:", "test_decode.py"),
    switched_off(
        "verify/stages/decode.py", "result.difference is not None", "test_decode.py::test_what_a_gpu_finds_fails"
    ),
    Mutant(
        "verify/stages/decode.py", '_skip(("decode",), pair, why, part)', 'part.passed("decode")', "test_vacuous.py"
    ),
    Mutant("verify/stages/oracle.py", "return row, float(relative[row])", "return row, 0.0", "test_oracle.py"),
    switched_off("verify/stages/oracle.py", "wrong.any()", "test_oracle.py"),
    switched_off("verify/stages/bandwidth.py", "not timings.identical", "test_figures.py"),
    switched_off(
        "verify/stages/bandwidth.py",
        "any(outcome.status is Status.FAILED for outcome in verdict.outcomes)",
        "test_figures.py",
    ),
    Mutant("verify/stages/model.py", "elif header != source.header_sha256:", "elif False:", "test_verify.py"),
    switched_off("verify/stages/model.py", "found != wanted", "test_report.py::test_provenance"),
    Mutant(
        "verify/stages/model.py", "sources if name not in accounted", "()", "test_verify.py::test_tables_that_differ"
    ),
    Mutant(
        "verify/verdict.py",
        "if outcome.status is Status.PASSED",
        "if outcome.status is not Status.FAILED",
        "test_vacuous.py",
    ),
    Mutant("verify/verdict.py", "bool(solid) and solid <= proven", "solid <= proven", "test_verify.py"),
)
MUTANTS = (*LAYOUTS, *FILES, *MODELS, *SIDECARS, *COMMANDS, *CONTRACT, *STAGES)
