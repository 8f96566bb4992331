#include "io/environment.h"

#include <hwloc.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include "build_info.h"
#include "build_revision.h"
#include "core/check.h"
#include "io/units.h"
#include "measure/machine_load.h"

extern char** environ;

namespace longnet {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "" where the file is missing; cgroup v2 says "max" for no limit, v1 a huge number.
int64_t bytes_in(const std::string& path) {
  const std::string line = first_line(path);
  if (line.empty() || line.find_first_not_of("0123456789") != std::string::npos) return 0;
  if (line.size() > 18) return 0;
  return std::stoll(line);
}

int64_t cache_bytes(hwloc_topology* t, hwloc_obj_type_t type) {
  hwloc_obj_t cache = hwloc_get_obj_by_type(t, type, 0);
  return cache && cache->attr ? int64_t(cache->attr->cache.size) : 0;
}

void capture_topology(Environment& env) {
  hwloc_topology_t raw = nullptr;
  const int init = hwloc_topology_init(&raw);
  check(init == 0, "hwloc_topology_init returned ", init);
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology(
      raw, hwloc_topology_destroy);
  const int load = hwloc_topology_load(raw);
  check(load == 0, "hwloc_topology_load returned ", load);
  const auto count = [&](hwloc_obj_type_t type) {
    return std::max(0, hwloc_get_nbobjs_by_type(raw, type));
  };
  env.packages = count(HWLOC_OBJ_PACKAGE);
  env.cores = count(HWLOC_OBJ_CORE);
  env.threads = count(HWLOC_OBJ_PU);
  env.numa_nodes = count(HWLOC_OBJ_NUMANODE);
  env.l1d_bytes = cache_bytes(raw, HWLOC_OBJ_L1CACHE);
  env.l2_bytes = cache_bytes(raw, HWLOC_OBJ_L2CACHE);
  env.l3_bytes = cache_bytes(raw, HWLOC_OBJ_L3CACHE);
  hwloc_obj_t package = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PACKAGE, 0);
  const char* model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  if (model) env.cpu_model = model;
  hwloc_cpuset_t mask = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(raw, mask, HWLOC_CPUBIND_PROCESS) == 0)
    env.usable_threads = std::max(0, hwloc_bitmap_weight(mask));
  hwloc_bitmap_free(mask);
  if (env.usable_threads == 0) env.usable_threads = env.threads;
}

void capture_system(Environment& env) {
  utsname name{};
  if (uname(&name) == 0) {
    env.hostname = name.nodename;
    env.kernel = concat(name.sysname, " ", name.release, " ", name.machine);
  }
  std::ifstream release("/etc/os-release");
  for (std::string line; std::getline(release, line);)
    if (line.starts_with("PRETTY_NAME=")) {
      env.os = line.substr(12);
      std::erase(env.os, '"');
    }
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page > 0) env.memory_bytes = int64_t(pages) * page;
  const int64_t limit = cgroup_memory_limit("/sys/fs/cgroup", "/proc/self/cgroup");
  env.memory_limit_bytes = limit > 0 ? std::min(limit, env.memory_bytes) : env.memory_bytes;
  env.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  const std::string no_turbo = first_line("/sys/devices/system/cpu/intel_pstate/no_turbo");
  const std::string boost = first_line("/sys/devices/system/cpu/cpufreq/boost");
  if (!no_turbo.empty()) env.turbo = no_turbo == "0" ? "on" : "off";
  if (!boost.empty()) env.turbo = boost == "1" ? "on" : "off";
  std::array<double, 3> load{};
  const int loads = getloadavg(load.data(), 3);
  for (int i = 0; i < loads; ++i) env.load_average.push_back(load[size_t(i)]);
}

// Settings that change a time, sorted. Whole names: a prefix lets addresses and keys of the job
// through (OMPI_MCA_orte_hnp_uri, NCCL_COOKIE).
// clang-format off
constexpr std::string_view kVariables[] = {
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "GOMP_STACKSIZE",
    "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG", "NCCL_DMABUF_ENABLE", "NCCL_GDRCOPY_ENABLE", "NCCL_GRAPH_REGISTER",
    "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_AR_THRESHOLD", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_RETRY_CNT", "NCCL_IB_SL", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_LAUNCH_MODE", "NCCL_LOCAL_REGISTER",
    "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS",
    "NCCL_MNNVL_ENABLE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_NET", "NCCL_NET_GDR_C2C",
    "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NET_PLUGIN", "NCCL_NET_SHARED_BUFFERS",
    "NCCL_NSOCKS_PERTHREAD", "NCCL_NTHREADS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_PXN_LEVEL",
    "NCCL_PROTO", "NCCL_PXN_DISABLE", "NCCL_RUNTIME_CONNECT", "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS",
    "OMPI_MCA_btl", "OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_links",
    "OMPI_MCA_btl_vader_eager_limit", "OMPI_MCA_btl_vader_single_copy_mechanism", "OMPI_MCA_coll",
    "OMPI_MCA_coll_hcoll_enable", "OMPI_MCA_coll_tuned_allgather_algorithm",
    "OMPI_MCA_coll_tuned_alltoall_algorithm", "OMPI_MCA_coll_tuned_use_dynamic_rules",
    "OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_mpi_leave_pinned",
    "OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_mtl", "OMPI_MCA_osc", "OMPI_MCA_pml",
    "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe",
    "OMPI_MCA_rmaps_base_ranking_policy",
    "OMP_DISPLAY_ENV", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NUM_THREADS", "OMP_PLACES",
    "OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_STACKSIZE", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY",
    "PBS_NUM_NODES", "PBS_NUM_PPN",
    "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE", "SLURM_JOB_ID", "SLURM_JOB_PARTITION",
    "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "UCX_NET_DEVICES", "UCX_TLS"};
// clang-format on
static_assert(std::ranges::is_sorted(kVariables));

// Under a launcher each rank is bound to its own cores, and the machine is what its ranks share.
bool is_bound(const Environment& env) { return !env.mpi_version.empty(); }
int shared_threads(const Environment& env) {
  return std::max(1, env.usable_threads > 0 && !is_bound(env) ? env.usable_threads : env.threads);
}

}  // namespace

BuildInfo build_info() {
  return {.version = build::kVersion,
          .revision = build::kRevision,
          .compiler = build::kCompiler,
          .flags = build::kFlags,
          .build_type = build::kBuildType,
          .sanitizer = build::kSanitizer};
}

bool environment_variable_allowed(std::string_view name) {
  return std::ranges::binary_search(kVariables, name);
}

std::string recorded_value(std::string_view value) {
  const bool ip = std::ranges::count(value, '.') >= 3;
  for (const std::string_view part : {"/", "@", "::"})
    if (ip || value.find(part) != std::string_view::npos) return "(not recorded)";
  return std::string(value);
}

int64_t cgroup_memory_limit(const std::string& root, const std::string& own_groups) {
  int64_t limit = 0;
  const auto tighten = [&](int64_t bytes) {
    if (bytes > 0 && (limit == 0 || bytes < limit)) limit = bytes;
  };
  std::ifstream own(own_groups);
  for (std::string line; std::getline(own, line);) {
    const bool v1 = line.find(":memory:/") != std::string::npos;
    if (!v1 && !line.starts_with("0::/")) continue;
    const std::filesystem::path top = v1 ? root + "/memory" : root;
    // In a container the path may be the host's, and not there.
    for (std::filesystem::path at = top.string() + line.substr(line.find(":/") + 1);;
         at = at.parent_path()) {
      tighten(bytes_in(at / (v1 ? "memory.limit_in_bytes" : "memory.max")));
      if (at == top || !at.has_relative_path()) break;
    }
  }
  return limit;
}

Environment capture_environment(Environment env) {
  env.captured_utc = utc_rfc3339();
  capture_system(env);
  capture_topology(env);
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && environment_variable_allowed(text.substr(0, equals)))
      env.variables.emplace(text.substr(0, equals), recorded_value(text.substr(equals + 1)));
  }
  return env;
}

std::string why_busy(const Environment& env) {
  if (!std::isnan(env.busy_share))
    return env.busy_share <= kBusyShare
               ? ""
               : concat("other programs used ", std::lround(100 * env.busy_share), " % of ",
                        is_bound(env) ? "rank 0's"
                                      : concat(std::max(1, env.usable_threads), " usable"),
                        " hardware threads");
  const int threads = shared_threads(env);
  if (env.load_average.empty() || env.load_average[0] <= 0.25 * threads) return {};
  return concat("load average ", env.load_average[0], " on ", threads,
                " usable hardware threads over the last minute");
}

std::vector<std::string> fitness_warnings(const Environment& env, const BuildInfo& build) {
  std::vector<std::string> warnings;
  const auto warn = [&](const auto&... parts) { warnings.push_back(concat(parts...)); };
  const int threads = shared_threads(env);
  if (const std::string why = why_busy(env); !why.empty())
    warn("The machine is busy: ", why,
         "; the report will decide no claim about time. Stop what else runs.");
  if (!env.governor.empty() && env.governor != "performance")
    warn("The CPU governor is '", env.governor,
         "': clocks may lag behind; 'performance' is steadier.");
  if (threads < 4)
    warn("Only ", threads, " hardware thread", threads == 1 ? " is" : "s are",
         " usable: the system's own work disturbs the measurement.");
  if (env.threads > env.usable_threads && env.usable_threads > 0 && !is_bound(env))
    warn("This process may use ", env.usable_threads, " of ", env.threads, " hardware threads.");
  if (build.build_type.empty())
    warn("This is a build without a type: its times mean nothing; use the release preset.");
  else if (build.build_type != "Release" && build.build_type != "RelWithDebInfo")
    warn("This is a ", build.build_type, " build: its times mean nothing; use the release preset.");
  if (!build.sanitizer.empty())
    warn("Built with -fsanitize=", build.sanitizer, ": its times mean nothing.");
  return warnings;
}

}  // namespace longnet
