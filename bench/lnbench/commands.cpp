#include "lnbench/commands.h"

#include "core/transports.h"
#include "kernels/cuda/device_kernel.h"

namespace longnet {
namespace {

// "a, b or c"
std::string any_of(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return concat(join(names, ", "), " or ", last);
}

std::vector<std::string> with(std::vector<std::string> names,
                              const std::vector<std::string>& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

// Each option only where it works.
void add_quiet(CLI::App& command, Options& o) {
  command.add_flag("-q,--quiet", o.quiet, "Only results and errors");
}

void add_color(CLI::App& command, Options& o) {
  command.add_option("--color", o.color, "auto, always or never; NO_COLOR is honoured")
      ->check(CLI::IsMember({"auto", "always", "never"}));
}

void add_progress(CLI::App& command, Options& o) {
  command
      .add_option_function<std::string>(
          "--progress",
          [&o](const std::string& name) { o.progress = parse_enum<ProgressStyle>(name); },
          "auto (a rewritten line on a terminal), plain or none")
      ->check(CLI::IsMember(enum_names<ProgressStyle>()));
}

void add_format(CLI::App& command, Options& o, std::vector<std::string> names) {
  command
      .add_option_function<std::string>(
          "--format", [&o](const std::string& name) { o.format = parse_enum<TableFormat>(name); },
          "Format of the table on stdout; except for text, notes go to stderr")
      ->check(CLI::IsMember(std::move(names)));
}

void add_table(CLI::App& command, Options& o) {
  add_format(command, o, {"text", "csv", "md", "json"});
  command.add_flag("--wide", o.wide, "All columns, whatever the width");
}

// Points of a config. `example`: a shipped one that the command takes as it is.
void add_points(CLI::App& command, Options& o, const std::string& example = "quick") {
  command
      .add_option("CONFIG", o.config,
                  concat("A JSON config, e.g. configs/", example,
                         ".json, or the name of a shipped one: ", example))
      ->required();
  command.add_option("--set", o.sets, "Override a key: --set sweep.seq_len=8K (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--filter", o.filter,
                     "Keep matching points: 'algorithm==dilated && seq_len<=1M'");
  add_quiet(command, o);
  add_table(command, o);
}

void add_ranks(CLI::App& command, Options& o) {
  command
      .add_option("--ranks", o.ranks,
                  "Ranks as threads where no launcher (mpirun) is used (default: one per usable "
                  "core, or per GPU for GPU kernels); with --mode virtual: sweep.ranks")
      ->check(CLI::Range(1, 1 << 24));
}

// Ranks of what is measured without a config.
void add_threads(CLI::App& command, Options& o) {
  command.add_option("--ranks", o.ranks, "Ranks as threads where no launcher (mpirun) is used")
      ->check(CLI::Range(1, 1024));
}

CLI::Option* add_output(CLI::App& command, Options& o) {
  return command.add_option("-o,--output", o.output,
                            "Folder of the result (default: results/<utc>-<name>-<rev>)");
}

// A result that may be interrupted.
void add_result(CLI::App& command, Options& o, const std::string& resume) {
  CLI::Option* output = add_output(command, o);
  command.add_option("--resume", o.resume, resume)->excludes(output);
  command.add_option("--max-time", o.max_time,
                     "Stop before this much time has passed (90s, 30m, 1.5h); resumable");
  command.add_flag(
      "--allow-changed-machine", o.allow_changed_machine,
      "Resume on another host, transport or number of ranks (the result then mixes them)");
}

// Adds the options of commands that run the points of a config on this machine.
void add_sweep(CLI::App& command, Options& o) {
  add_points(command, o);
  add_ranks(command, o);
  command
      .add_option("--mode", o.mode,
                  "real (ranks that run at once) or virtual: one device walks all ranks")
      ->check(CLI::IsMember({"real", "virtual"}));
  command
      .add_option("--transport", o.transport,
                  concat("auto (the launcher's ranks, else threads); for GPU kernels also ",
                         any_of(device_transport_names())))
      ->check([](const std::string& name) {
        return name == "virtual" ? "virtual is a mode, no transport: use --mode virtual" : "";
      })
      ->check(CLI::IsMember(enum_names<DeviceTransportKind>()));
}

// `required`: no config can name one instead.
void add_cluster(CLI::App& command, Options& o, bool required) {
  command
      .add_option("--cluster", o.cluster,
                  concat("A cluster file, or the name of a shipped one: h100",
                         required ? "" : " (default: the config's cluster.file)"))
      ->required(required);
  command
      .add_option("--what-if", o.what_if,
                  concat("Change it: bandwidth=0.5, inter_bandwidth=2, latency=2 (factors), "
                         "taper=2, gpus_per_node=4, nodes=1024, overlap=0.56, host=4.5e-05, "
                         "straggler=0.2 (rank "
                         "0 computes 20 % slower; 0.2@17: rank 17; 0.2x8: eight ranks), kernel=fa3 "
                         "(of the device's), merge=kernel|fused|eager, several with commas; "
                         "repeatable, each makes points of its own, '' those of the cluster as it "
                         "is, to which the others' times have a ratio",
                         required ? "" : " (default: the config's cluster.what_if)"))
      ->allow_extra_args(false);
  command
      .add_option("--alpha", o.alpha,
                  concat("Latencies: band (nccl_ll, and all three as an interval), ",
                         any_of(enum_names<AlphaSet>())))
      ->check(CLI::IsMember(with({"band"}, enum_names<AlphaSet>())));
}

void add_env_options(CLI::App& command, Options& o) {
  command.add_option("--json", o.json, "Write the environment to this file");
  command.add_flag("--check", o.fitness_check,
                   "Exit 3 when there is a reason to distrust measurements here");
  add_quiet(command, o);
}

void add_plan_options(CLI::App& command, Options& o) {
  add_sweep(command, o);
  add_progress(command, o);
  command.add_flag("-v,--verbose", o.verbose, "The branches of each point, its memory by tag");
  auto* cluster =
      command.add_option("--cluster", o.cluster,
                         "Plan for a cluster, a file or a shipped one's name: simulated time, "
                         "GPU-hours, memory, what does not fit");
  auto* schedule = command.add_option("--schedule", o.schedule_of,
                                      "Print the program of this point (id or number)");
  for (const char* option : {"--ranks", "--mode", "--transport", "--verbose", "--schedule"})
    cluster->excludes(option);
  for (const char* option : {"--format", "--wide", "--verbose"}) schedule->excludes(option);
  command.add_option("--rank", o.schedule_rank, "Whose program to print")->needs(schedule);
  command.add_flag("--dot", o.dot, "As Graphviz, up to 8 ranks with their messages")
      ->needs(schedule);
}

void add_run_options(CLI::App& command, Options& o) {
  add_sweep(command, o);
  add_progress(command, o);
  add_color(command, o);
  add_result(command, o, "Go on with an interrupted result folder");
  command.add_option("--replay", o.replay, "With --mode virtual: only these ranks, e.g. 0,17,4095");
}

void add_train_options(CLI::App& command, Options& o) {
  add_points(command, o, "train-bytes");
  add_ranks(command, o);
  add_progress(command, o);
  add_result(command, o, "Go on with an interrupted training, to the same bits");
}

void add_simulate_options(CLI::App& command, Options& o) {
  add_points(command, o, "quick-cluster");
  add_progress(command, o);
  add_color(command, o);
  add_cluster(command, o, /*required=*/false);
  add_output(command, o);
  command.add_flag("--no-collapse", o.no_collapse,
                   "Walk every rank, also those that do the same as others");
  command.add_option("--trace", o.trace,
                     "Write what every rank does when, for chrome://tracing or Perfetto (needs a "
                     "--filter that leaves one point)");
}

void add_recommend_options(CLI::App& command, Options& o) {
  Question& q = o.question;
  add_cluster(command, o, /*required=*/true);
  command.add_option("--seq-len", q.seq_len, "Tokens of one sequence, e.g. 16M")->required();
  command.add_option("--ranks", q.ranks, "GPUs")->required()->check(CLI::Range(1, 1 << 20));
  command.add_option("--heads", q.heads, concat("Query heads (default ", q.heads, ")"))
      ->check(CLI::PositiveNumber);
  command.add_option("--kv-heads", q.kv_heads, "K/V heads (default: as many as heads)")
      ->check(CLI::PositiveNumber);
  command.add_option("--head-dim", q.head_dim, concat("Size of a head (default ", q.head_dim, ")"))
      ->check(CLI::PositiveNumber);
  command.add_option("--batch", q.batch, concat("Sequences (default ", q.batch, ")"))
      ->check(CLI::PositiveNumber);
  command.add_option("--dtype", q.dtype, any_of(enum_names<DType>()))
      ->check(CLI::IsMember(enum_names<DType>()));
  command.add_flag("--causal", q.causal, "A query sees the keys at positions up to its own");
  command.add_option("--pass", q.pass, "forward, backward or forward_backward (default forward)")
      ->check(CLI::IsMember({"forward", "backward", "forward_backward"}));
  command
      .add_option("--dilated-segments", q.dilated_segments,
                  "Segments of dilated attention (default 2048,per_rank,sequence)")
      ->delimiter(',');
  command.add_option("--top", o.top, "Rows of each list (default 10)")->check(CLI::PositiveNumber);
  add_quiet(command, o);
  add_progress(command, o);
  add_table(command, o);
}

void add_validate_options(CLI::App& command, Options& o) {
  command.add_option("--json", o.json, "Write the errors to this file");
  command.add_option("--real", o.real,
                     "Real runs compared by scripts/validate_real.sh (real.json)");
  command
      .add_option("--published", o.published,
                  "Predict the published measurements of this folder (configs/published)")
      ->expected(0, 1)
      ->default_str("configs/published");
}

void add_comm_options(CLI::App& command, Options& o) {
  add_threads(command, o);
  command
      .add_option("--transport", o.comm_transport,
                  concat("host (default: the launcher's ranks, else threads), or between GPUs: "
                         "gpu (what auto is for GPU kernels), ",
                         any_of(device_transport_names())))
      ->check(CLI::IsMember(with({"host", "gpu"}, device_transport_names())));
  command.add_option("--max-bytes", o.max_bytes,
                     "Largest message, e.g. 4MiB (default: 4MiB, between GPUs 256MiB)");
  command.add_option("--json", o.json, "Write the rows, with their samples, to this file");
  add_table(command, o);
}

void add_calibrate_options(CLI::App& command, Options& o) {
  command.add_option("-o,--output", o.output, "The cluster file (default: cluster.json)");
  add_threads(command, o);
  command.add_flag("--quick", o.quick, "Seconds instead of two minutes; to try it, not to trust");
  auto* kernels = command.add_option("--gpu-kernels", o.gpu_kernels,
                                     "Measure nothing: write --cluster again with the speeds of "
                                     "attention that gpu_kernels_benchmark --json measured");
  auto* links = command.add_option(
      "--gpu-comm", o.gpu_comm,
      "Likewise, with the link that lnbench comm --transport gpu --json measured: inside a node, "
      "or between nodes when its ranks 0 and 1 were on two");
  auto* cluster = command.add_option("--cluster", o.cluster,
                                     "The cluster that --gpu-kernels and --gpu-comm go into");
  kernels->needs(cluster);
  links->needs(cluster);
  command
      .add_option("--kernel", o.gpu_kernel,
                  concat("Kernel of the --gpu-kernels file (default: cuda): ",
                         any_of(names_of(device_kernels()))))
      ->needs(kernels);
  add_quiet(command, o);
}

void add_compare_options(CLI::App& command, Options& o) {
  command.add_option("BASE", o.base, "Result folder or result.json")->required();
  command.add_option("NEW", o.now, "Result folder or result.json")->required();
  command.add_option("--threshold", o.threshold, "Smallest change that matters, e.g. 5%");
  command.add_flag(
      "--any-transport", o.any_transport,
      "Compare points of different transports as well: nccl with nccl_registered, say");
  add_progress(command, o);
  add_table(command, o);
}

void add_report_options(CLI::App& command, Options& o) {
  command.add_option("DIR", o.result_dirs, "Result folders; none: a report of --validation alone");
  command.add_option("-o,--output", o.report_file,
                     "The HTML file (default: report.html in the folder; of several, "
                     "together/report.html in the first; of none, beside --validation's)");
  command.add_option("--validation", o.validation,
                     "Errors of the simulator (lnbench validate --json): a section of the report");
  command.add_flag("--compare", o.report_compares,
                   "Two folders side by side, with the verdicts of lnbench compare");
}

void add_check_options(CLI::App& command, Options& o) {
  add_sweep(command, o);
  add_color(command, o);
}

void add_depth_options(CLI::App& command, Options& o) {
  add_points(command, o);
  add_ranks(command, o);
  add_progress(command, o);
}

void add_list_options(CLI::App& command, Options& o) {
  command.add_option("KIND", o.list_kind, "One kind alone")
      ->check(CLI::IsMember({"configs", "algorithms", "kernels", "transports", "clusters"}));
  add_table(command, o);
}

void add_export_options(CLI::App& command, Options& o) {
  command.add_option("DIR", o.result_dirs, "Result folders")->required();
  add_format(command, o, {"csv", "jsonl"});
  command.add_option("-o,--output", o.output, "The file (default: stdout)");
}

constexpr Command kCommands[] = {
    {"env", "What this machine is, and whether it is fit to measure", add_env_options, run_env},
    {"plan", "Points, FLOPs, bytes, memory, estimated time, skips; or one rank's program",
     add_plan_options, run_plan, false, true},
    {"run", "Measure and check every point, for real (the ranks of mpirun or srun, else threads)",
     add_run_options, run_points, true, true},
    {"simulate", "The same points on a modelled cluster: any number of ranks, no MPI, no GPU",
     add_simulate_options, run_simulate, false, true},
    {"recommend", "Which algorithm for this problem on that cluster? A ranked list",
     add_recommend_options, run_recommend},
    {"validate", "How right the simulator is: against equations, SimGrid and real runs",
     add_validate_options, run_validate},
    {"check", "Correctness only: every point up to check.max_seq_len against the reference",
     add_check_options, run_check, true, true},
    {"train", "Train a byte-level language model around the attention of a config's one point",
     add_train_options, run_train, true, true},
    {"depth", "Layers until every token has heard from every other, from the pattern alone",
     add_depth_options, run_depth},
    {"comm", "What moves bytes between ranks, alone: latency, bandwidth, collectives",
     add_comm_options, run_comm, true},
    {"calibrate", "This machine as a cluster file for simulate: kernels, memory, links, measured",
     add_calibrate_options, run_calibrate, true},
    {"compare", "Did anything get slower between two results? (Mann-Whitney, Holm)",
     add_compare_options, run_compare},
    {"report", "Plots and one self-contained report.html", add_report_options, run_report},
    {"export", "The points of results as CSV or JSON Lines, for pandas and spreadsheets",
     add_export_options, run_export},
    {"list", "Configs, algorithms, kernels, transports and clusters, one line each",
     add_list_options, run_list},
    {"completion", "A script that completes lnbench in bash: source <(lnbench completion)",
     [](CLI::App&, Options&) {}, nullptr},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace longnet
