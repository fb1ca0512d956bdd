// Save and cold load of a 135M model's training state (weights, m, v in fp32: 12 bytes a parameter)
// beside what the disk gives.
//   mpirun -n 2 build/release/perf/perf_checkpoint --dir FOLDER [--repetitions 5] [--layers 30]
//   [--collective]
// --collective also writes the same datasets by collective HDF5, the usual way, as a peer.
#include <fcntl.h>
#include <hdf5.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "harness/arguments.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/session.hpp"

namespace {

using namespace trireme;

struct Arguments {
  std::filesystem::path dir = ".";
  int repetitions = 5;
  int64_t layers = 30;
  bool collective = false;
};

std::vector<base::TensorSpec> smollm(int64_t layers) {
  std::vector<base::TensorSpec> out{{"model.embed_tokens.weight", {49152, 576}}};
  for (int64_t l = 0; l < layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    out.push_back({p + "input_layernorm.weight", {576}});
    out.push_back({p + "self_attn.q_proj.weight", {576, 576}});
    out.push_back({p + "self_attn.k_proj.weight", {192, 576}});
    out.push_back({p + "self_attn.v_proj.weight", {192, 576}});
    out.push_back({p + "self_attn.o_proj.weight", {576, 576}});
    out.push_back({p + "post_attention_layernorm.weight", {576}});
    out.push_back({p + "mlp.gate_proj.weight", {1536, 576}});
    out.push_back({p + "mlp.up_proj.weight", {1536, 576}});
    out.push_back({p + "mlp.down_proj.weight", {576, 1536}});
  }
  out.push_back({"model.norm.weight", {576}});
  return out;
}

struct Model {
  checkpoint::Content content;
  std::vector<std::vector<float>> storage;
  int64_t bytes = 0;
  int64_t largest_stage =
      0;  // bytes of this rank in the three arrays: the embedding, as in ckpt.copy_aside = "stage"
};

Model make_model(const comm::CommView& world, int64_t layers) {
  Model model;
  const auto layout = base::ShardLayout::by_rows(smollm(layers), world.size());
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    for (const char* kind : {"weight", "m", "v"}) {
      const base::Block block = layout.block(i, world.rank());
      model.storage.emplace_back(static_cast<size_t>(std::max<int64_t>(0, block.elements())));
      for (size_t e = 0; e < model.storage.back().size(); ++e)
        model.storage.back()[e] = static_cast<float>(e % 1021) * 1e-3f;
      const auto& tensor = layout.tensors()[i];
      model.content.datasets.push_back({std::string("/actor/") + kind + "/" + tensor.name,
                                        tensor.shape, comm::DType::f32, block,
                                        model.storage.back().data()});
      model.bytes += tensor.elements() * 4;
    }
    if (i == 0)
      model.largest_stage = 3 * 4 * std::max<int64_t>(0, layout.block(0, world.rank()).elements());
  }
  return model;
}

// Seconds of `work`, the slowest rank's, all starting together.
double timed(const comm::CommView& world, const std::function<void()>& work) {
  world.barrier();
  const base::Stopwatch watch;
  work();
  return world.max(watch.seconds());
}

void drop_cache(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

void on_root(const comm::CommView& world, const std::function<void()>& work) {
  if (world.rank() == 0) work();
  world.barrier();
}

void dd(const std::string& arguments) {
  if (std::system(("dd bs=4M status=none " + arguments).c_str()) != 0)
    std::fprintf(stderr, "dd %s failed\n", arguments.c_str());
}

// The usual way: every dataset by one collective write.
#if defined(H5_HAVE_PARALLEL)
void save_collectively(const comm::CommView& world, const std::filesystem::path& file,
                       const checkpoint::Content& content) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fapl_mpio(access, static_cast<MPI_Comm>(world.native()), MPI_INFO_NULL);
  H5Pset_all_coll_metadata_ops(access, true);
  H5Pset_coll_metadata_write(access, true);
  H5Pset_alignment(access, 1 << 20, 1 << 20);
  const hid_t out = H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  const hid_t links = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  const hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
  H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
  for (const auto& d : content.datasets) {
    const std::vector<hsize_t> dims(d.shape.begin(), d.shape.end());
    const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
    const hid_t dataset =
        H5Dcreate2(out, d.path.c_str(), H5T_IEEE_F32LE, space, links, creation, H5P_DEFAULT);
    std::vector<hsize_t> start(dims.size(), 0);
    std::vector<hsize_t> count = dims;
    start[0] = static_cast<hsize_t>(d.block.row);
    count[0] = static_cast<hsize_t>(std::max<int64_t>(0, d.block.rows));
    const hid_t memory = H5Screate_simple(static_cast<int>(dims.size()), count.data(), nullptr);
    if (d.block.empty()) {
      H5Sselect_none(space);
      H5Sselect_none(memory);
    } else {
      H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
    }
    H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory, space, transfer, d.data);
    H5Sclose(memory);
    H5Dclose(dataset);
    H5Sclose(space);
  }
  for (const hid_t list : {transfer, links, creation, access}) H5Pclose(list);
  H5Fclose(out);
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  ::fsync(fd);
  ::close(fd);
}
#endif

class Rows {
 public:
  void add(const std::string& name, double seconds) {
    for (auto& [known, all] : rows_) {
      if (known == name) return all.push_back(seconds);
    }
    rows_.push_back({name, {seconds}});
  }
  void print(double bytes) const {
    std::printf("%-34s %8s %8s %8s %8s\n", "", "min s", "median s", "best", "median GB/s");
    for (auto [name, all] : rows_) {
      std::sort(all.begin(), all.end());
      const double median = all[all.size() / 2];
      std::printf("%-34s %8.3f %8.3f %8.2f %8.2f\n", name.c_str(), all[0], median,
                  bytes / all[0] / 1e9, bytes / median / 1e9);
    }
  }

 private:
  std::vector<std::pair<std::string, std::vector<double>>> rows_;
};

void load(const comm::CommView& world, const std::filesystem::path& folder, Model& model) {
  checkpoint::Reader reader(world, folder);
  std::vector<checkpoint::ReadRequest> requests;
  for (size_t i = 0; i < model.content.datasets.size(); ++i) {
    const auto& d = model.content.datasets[i];
    requests.push_back({d.path, d.shape, d.type, d.block, model.storage[i].data()});
  }
  reader.read(requests);
}

// The training thread's part of a background save: start(), then an optimizer step that asks before
// each tensor.
double stall_of_background(const comm::CommView& world, const std::filesystem::path& folder,
                           int step, const Model& model, checkpoint::BackgroundWriter& writer,
                           double compute_seconds, int64_t most_aside) {
  world.barrier();
  base::Stopwatch watch;
  writer.start(folder, step, model.content, {.keep = 2}, most_aside);
  double stall = watch.seconds();
  const base::Stopwatch
      computing;  // forward and backward of the next step: the shards stay as they are
  while (computing.seconds() < compute_seconds) ::usleep(1000);
  watch.restart();
  for (size_t i = 0; i < model.content.datasets.size(); ++i) writer.before_change(i);
  stall += watch.seconds();
  writer.wait();
  return world.max(stall);
}

void measure(const comm::CommView& world, const Arguments& arguments, bool thread_multiple) {
  Model model = make_model(world, arguments.layers);
  const auto folder = arguments.dir / "perf_checkpoint";
  const auto plain = arguments.dir / "perf_checkpoint.dd";
  const std::string blocks = std::to_string(model.bytes / (4 << 20));
  checkpoint::BackgroundWriter background(world, thread_multiple);
  Rows rows;
  for (int r = 0; r < arguments.repetitions; ++r) {
    rows.add("dd conv=fdatasync", timed(world, [&] {
               on_root(world, [&] {
                 dd("if=/dev/zero of=" + plain.string() + " count=" + blocks + " conv=fdatasync");
               });
             }));
    on_root(world, [&] { std::filesystem::remove(plain); });
    checkpoint::SaveReport report;
    rows.add("save, fsynced", timed(world, [&] {
               report = checkpoint::save(world, folder, 4 * r, model.content, {.keep = 2});
             }));
    if (world.rank() == 0) {
      std::printf(
          "  save %d: write %.3f sync %.3f verify %.3f of %.3f s, rank 0 wrote %.0f MB in %ld "
          "pieces\n",
          r, report.write_seconds, report.sync_seconds, report.verify_seconds, report.seconds,
          static_cast<double>(report.written_by_me) / 1e6, static_cast<long>(report.pieces_by_me));
    }
    rows.add("save, without reading back", timed(world, [&] {
               checkpoint::save(world, folder, 4 * r + 1, model.content,
                                {.keep = 2, .verify = false});
             }));
    rows.add(
        "stall of a background save, 1 s step",
        stall_of_background(world, folder, 4 * r + 2, model, background, 1.0, model.largest_stage));
    rows.add("the same, all may be copied",
             stall_of_background(world, folder, 4 * r + 3, model, background, 1.0,
                                 std::numeric_limits<int64_t>::max()));
#if defined(H5_HAVE_PARALLEL)
    if (arguments.collective) {
      rows.add("collective HDF5, fsynced",
               timed(world, [&] { save_collectively(world, plain, model.content); }));
      on_root(world, [&] { std::filesystem::remove(plain); });
    }
#endif
    const auto newest = folder / checkpoint::folder_name(4 * r + 3);
    on_root(world, [&] { drop_cache(newest / "data.h5"); });
    rows.add("dd of the file, cold", timed(world, [&] {
               on_root(world, [&] { dd("if=" + (newest / "data.h5").string() + " of=/dev/null"); });
             }));
    on_root(world, [&] { drop_cache(newest / "data.h5"); });
    rows.add("load, cold, digests checked", timed(world, [&] { load(world, newest, model); }));
    rows.add("load, warm", timed(world, [&] { load(world, newest, model); }));
  }
  if (world.rank() == 0) {
    std::printf("%d ranks, %.3f GB\n", world.size(), static_cast<double>(model.bytes) / 1e9);
    rows.print(static_cast<double>(model.bytes));
    std::filesystem::remove_all(folder);
  }
}

Arguments parse(int argc, char** argv) {
  Arguments out;
  CLI::App app("Saves and loads a checkpoint of the 135M shape, beside dd");
  app.add_option("--dir", out.dir, "folder to write into")->capture_default_str();
  app.add_option("--repetitions", out.repetitions)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", out.layers)->check(CLI::PositiveNumber)->capture_default_str();
#if defined(H5_HAVE_PARALLEL)
  app.add_flag("--collective", out.collective, "write through MPI-IO");
#endif
  perf::parse_or_exit(app, argc, argv);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  // Open MPI's default I/O layer reports success on a full disk; its older one does not. Before MPI
  // starts.
  if (arguments.collective) setenv("OMPI_MCA_io", "romio321", 0);
  const trireme::comm::Session session;
  measure(session.world(), arguments, session.facts().thread_multiple);
  return 0;
}
