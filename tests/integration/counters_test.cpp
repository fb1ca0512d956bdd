// What is easily faked, told by counters: bytes read, sent, written and held, and tokens computed,
// by the driver's own objects on a tiny model.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/index.hpp"
#include "driver/checkpointing.hpp"
#include "driver/weight_bridge.hpp"
#include "mpi_meter.hpp"
#include "support/world.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/learn/trainer.hpp"
#include "trireme/rollout/generator.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::driver {
namespace {

constexpr const char* kShape =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu",
"hidden_size":64,"head_dim":16,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":3,
"vocab_size":272,"max_position_embeddings":256,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true,
"torch_dtype":"float32"})";
constexpr const char* kPrompts = R"({"prompt":"1+2="}
{"prompt":"a prompt of more than one page of sixteen tokens: 12+30="}
{"prompt":"what is 2+2? "}
{"prompt":"7+8="}
)";
constexpr int64_t kMaxNewTokens = 8;
constexpr int64_t kSamples = 4;

std::filesystem::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : ".";
}

// A folder for this rank count, with `model` and `prompts.jsonl`; made once by rank 0, removed at
// the end of the test program.
class Folder : public testing::Environment {
 public:
  void SetUp() override {
    const auto& world = test::world();
    path() = from_environment("TRIREME_BINARY_DIR") / "integration" /
             base::text("counters-np", world.size());
    if (world.rank() == 0) {
      std::filesystem::remove_all(path());
      std::filesystem::create_directories(path());
      std::ofstream(path() / "config.json") << kShape;
      std::ofstream(path() / "prompts.jsonl") << kPrompts;
      tools::run_init({.shape = path() / "config.json",
                       .output = path() / "model",
                       .tokenizer = from_environment("TRIREME_SOURCE_DIR") / "inputs" / "tutorial" /
                                    "tokenizer",
                       .seed = 1,
                       .dtype = config::DType::f32});
    }
    world.barrier();
  }
  void TearDown() override {
    test::world().barrier();
    if (test::world().rank() == 0) std::filesystem::remove_all(path());
  }
  static std::filesystem::path& path() {
    static std::filesystem::path path;
    return path;
  }
};
const auto* const folder = testing::AddGlobalTestEnvironment(new Folder);

config::Options options_of_run(const std::string& run) {
  config::Options options;
  options.run.dir = (Folder::path() / run).string();
  options.model.path = (Folder::path() / "model").string();
  options.model.dtype = config::ComputeType::fp32;
  options.data.prompt_dataset = {(Folder::path() / "prompts.jsonl").string()};
  options.data.max_len = 96;
  options.rollout.max_new_tokens = kMaxNewTokens;
  options.rollout.ignore_eos = true;
  options.ckpt.background = false;
  return options;
}

// Roles, start and trainer of a run in which every rank has every role.
struct TinyRun {
  explicit TinyRun(config::Options deck)
      : options(std::move(deck)),
        roles(comm::make_roles(options, test::world())),
        start(learn::actor_start(options)),
        trainer(options, roles, {start.spec}, {at::kCPU}, {}, 10) {}

  std::unique_ptr<rollout::Generator> make_generator(
      const std::vector<const std::byte*>& shared = {}) const {
    auto made = std::make_unique<rollout::Generator>(
        options, roles,
        rollout::Policy{start.spec, text::Tokenizer::load(options.model.path), shared},
        machine::ComputeResources{at::kCPU});
    made->start(int64_t{64} << 20);
    return made;
  }
  int64_t model_bytes() const {
    int64_t elements = 0;
    for (const auto& parameter : start.spec.parameters) elements += parameter.spec.elements();
    return elements * static_cast<int64_t>(sizeof(float));
  }
  // The most that one rank may hold or move of the model when it is cut by rows: every tensor is
  // rounded up to whole rows.
  int64_t fair_share() const {
    int64_t elements = 0;
    for (const auto& parameter : start.spec.parameters) {
      const int64_t rows = parameter.spec.rows();
      const int64_t mine = (rows + roles.world.size() - 1) / roles.world.size();
      elements += mine * (parameter.spec.elements() / rows);
    }
    return elements * static_cast<int64_t>(sizeof(float));
  }

  config::Options options;
  comm::Roles roles;
  learn::ModelStart start;
  learn::Trainer trainer;
};

// Digests, sizes, votes: what a collective step may say to others beside data.
constexpr int64_t kTalk = 16 << 10;

TEST(Counters, TheMeterSeesAGather) {
  const auto& world = test::world();
  const int64_t before = test::bytes_given_to_mpi();
  world.gather(std::string(static_cast<size_t>(10 * kTalk), 'x'), 0);
  const int64_t seen = world.max(test::bytes_given_to_mpi() - before);
  EXPECT_GE(seen, world.size() > 1 ? 10 * kTalk : 0);
}

TEST(Counters, LoadingReadsOwnRowsAndSendsNoWeights) {
  TinyRun run(options_of_run("load"));
  const int64_t sent = test::bytes_given_to_mpi();
  const auto before = static_cast<int64_t>(run.start.weights->bytes_read());
  run.trainer.actor().load(run.start.reader());
  const int64_t mine = static_cast<int64_t>(run.start.weights->bytes_read()) - before;
  EXPECT_EQ(run.roles.world.sum(mine), run.model_bytes()) << "every byte once, by one rank";
  EXPECT_LE(mine, run.fair_share());
  EXPECT_LT(test::bytes_given_to_mpi() - sent, kTalk);
}

TEST(Counters, TrainersHoldOneShareOfTheState) {
  TinyRun run(options_of_run("memory"));
  const auto use = run.trainer.actor().memory();
  const int64_t padding = 64 * static_cast<int64_t>(run.start.spec.parameters.size());
  EXPECT_LE(use.master, run.fair_share() + padding);
  EXPECT_LE(use.gradients, run.fair_share() + padding);
  EXPECT_LE(use.moments, 2 * (run.fair_share() + padding));
  EXPECT_GE(run.roles.world.sum(use.master), run.model_bytes());
}

TEST(Counters, ExportSendsNoWeights) {
  TinyRun run(options_of_run("export"));
  run.trainer.actor().load(run.start.reader());
  const int64_t sent = test::bytes_given_to_mpi();
  const auto hf = Folder::path() / "export" / "hf";
  if (run.roles.world.rank() == 0) std::filesystem::create_directories(hf.parent_path());
  run.roles.world.barrier();
  learn::export_model(run.roles, run.start, &run.trainer.actor(), hf,
                      {.type = model::StoredType::f32, .kept = nullptr});
  EXPECT_LT(test::bytes_given_to_mpi() - sent, kTalk) << "rank 0 gathers nothing";
  config::Options again = run.options;
  again.model.path = hf.string();
  const learn::ModelStart exported = learn::actor_start(again);
  for (size_t p = 0; p < run.start.spec.parameters.size(); ++p) {
    const auto& spec = run.start.spec.parameters[p].spec;
    const base::Block whole{0, spec.rows(), 0, spec.elements() / spec.rows()};
    std::vector<float> ours(static_cast<size_t>(spec.elements()));
    std::vector<float> theirs(ours.size());
    exported.reader()(p, whole, ours.data());
    run.start.reader()(p, whole, theirs.data());
    EXPECT_EQ(ours, theirs) << spec.name;
  }
}

TEST(Counters, EveryRankWritesAndReadsItsOwnRowsOfACheckpoint) {
  TinyRun run(options_of_run("checkpoint"));
  const auto& world = run.roles.world;
  zero::ShardedModel& actor = run.trainer.actor();
  actor.load(run.start.reader());
  const RunFolder run_folder(run.options, world);
  Checkpointing saver(run.options, run.roles, run_folder, at::kCPU, false);
  saver.add({"actor", &run.start.spec, &actor, false});
  RunState state;
  state.command = "ppo";
  state.iteration = 1;
  const int64_t sent = test::bytes_given_to_mpi();
  saver.save(state, {}, true);
  const int64_t given = test::bytes_given_to_mpi() - sent;

  const auto step = run_folder.checkpoints() / checkpoint::folder_name(1);
  const auto entries =
      checkpoint::index_from_bytes(base::read_file(step / "index.bin"), "index.bin");
  // What stands at the two ends of a rank's rows may share a page with a neighbour's and is sent to
  // the page's owner.
  constexpr int64_t kPage = 4096;
  int64_t tensors = 0, edges = 0, owned = 0;
  for (const auto& entry : entries) {
    if (entry.path == "/state") continue;
    ++tensors;
    const base::Block own = base::ShardLayout::by_rows({{entry.path, entry.shape}}, world.size())
                                .block(0, world.rank());
    const int64_t first = entry.offset + own.row * entry.columns() * int64_t{sizeof(float)},
                  end = first + own.elements() * int64_t{sizeof(float)};
    const int64_t first_page = std::min(end, (first + kPage - 1) / kPage * kPage),
                  last_page = std::max(first_page, end / kPage * kPage);
    edges += first_page - first + end - last_page;
    owned += end - first;
    EXPECT_EQ(static_cast<int>(entry.slabs.size()), world.size()) << entry.path;
    for (const auto& slab : entry.slabs) {
      EXPECT_LE(slab.block.elements(),
                (entry.rows() + world.size() - 1) / world.size() * entry.columns())
          << entry.path;
    }
  }
  EXPECT_LT(given, kTalk + edges) << "digests, agreements and the edges of pages only";
  EXPECT_LT(edges, owned) << "or this says nothing";
  EXPECT_EQ(tensors, 3 * static_cast<int64_t>(run.start.spec.parameters.size())) << "weight, m, v";

  checkpoint::Reader reader(world, step);
  std::vector<checkpoint::ReadRequest> requests;
  std::vector<std::vector<float>> rows(run.start.spec.parameters.size());
  for (size_t p = 0; p < rows.size(); ++p) {
    const auto& spec = run.start.spec.parameters[p].spec;
    rows[p].resize(static_cast<size_t>(actor.own(p).elements()));
    if (!rows[p].empty()) {
      requests.push_back({"/actor/weight/" + spec.name, spec.shape, comm::DType::f32, actor.own(p),
                          rows[p].data()});
    }
  }
  reader.read(requests);
  EXPECT_EQ(reader.counters().read, reader.counters().wanted);
  EXPECT_LE(reader.counters().read, run.fair_share());
  for (size_t p = 0; p < rows.size(); ++p) {
    EXPECT_TRUE(std::equal(rows[p].begin(), rows[p].end(), actor.master(p).host()))
        << run.start.spec.parameters[p].spec.name;
  }
}

// What PpoRoles does: generators among the trainers of a node read the trainers' window.
TEST(Counters, ColocatedRanksOfANodeShareTheWeights) {
  TinyRun run(options_of_run("share"));
  run.trainer.actor().load(run.start.reader());
  const auto shared = shared_weights(run.options, run.roles, &run.trainer.actor());
  ASSERT_EQ(shared.size(), run.start.spec.parameters.size());
  const auto made = run.make_generator(shared);
  rollout::Generator& generator = *made;
  EXPECT_EQ(generator.weights().bytes(), 0) << "it has no memory of its own";
  WeightBridge bridge(run.options, run.roles, run.start.spec, at::kCPU, true);
  const int64_t sent = test::bytes_given_to_mpi();
  const auto counters = bridge.run(7, &run.trainer.actor(), &generator.weights());
  EXPECT_EQ(counters.bytes_local + counters.bytes_received + counters.bytes_sent, 0);
  EXPECT_LT(test::bytes_given_to_mpi() - sent, kTalk);
  EXPECT_EQ(generator.weights().version(), 7);
  for (size_t p = 0; p < run.start.spec.parameters.size(); ++p) {
    const auto& spec = run.start.spec.parameters[p].spec;
    std::vector<float> whole(static_cast<size_t>(spec.elements()));
    run.start.reader()(p, {0, spec.rows(), 0, spec.elements() / spec.rows()}, whole.data());
    EXPECT_EQ(std::memcmp(generator.weights().data(p), whole.data(), whole.size() * sizeof(float)),
              0)
        << spec.name;
  }
  config::Options apart = run.options;
  apart.weightsync.shared_memory = config::SharedMemory::never;
  EXPECT_TRUE(shared_weights(apart, run.roles, &run.trainer.actor()).empty());
}

TEST(Counters, ColocatedRolesGoThroughTheWeightSync) {
  TinyRun run(options_of_run("sync"));
  run.trainer.actor().load(run.start.reader());
  const auto made = run.make_generator();
  rollout::Generator& generator = *made;
  WeightBridge bridge(run.options, run.roles, run.start.spec, at::kCPU, false);
  const auto counters = bridge.run(1, &run.trainer.actor(), &generator.weights());
  const auto& world = run.roles.world;
  EXPECT_GT(counters.bytes_local, 0) << "own rows are copied by the plan";
  EXPECT_EQ(counters.bytes_local + counters.bytes_received, run.model_bytes())
      << "the rest comes from the others, once";
  EXPECT_EQ(world.sum(counters.bytes_sent), world.sum(counters.bytes_received));
  EXPECT_EQ(counters.version, 1);
  for (size_t p = 0; p < run.start.spec.parameters.size(); ++p) {
    const auto& spec = run.start.spec.parameters[p].spec;
    std::vector<float> whole(static_cast<size_t>(spec.elements()));
    run.start.reader()(p, {0, spec.rows(), 0, spec.elements() / spec.rows()}, whole.data());
    EXPECT_EQ(std::memcmp(generator.weights().data(p), whole.data(), whole.size() * sizeof(float)),
              0)
        << spec.name;
  }
}

TEST(Counters, TensorParallelRanksHoldSlices) {
  const int ranks = test::world().size();
  if (ranks > 3) GTEST_SKIP() << "three groups of heads";
  config::Options options = options_of_run("tensor-parallel");
  options.generate.tensor_parallel = ranks;
  TinyRun run(options);
  const auto made = run.make_generator();
  rollout::Generator& generator = *made;
  const int64_t bytes = generator.weights().bytes();
  const double share = static_cast<double>(bytes) / static_cast<double>(run.model_bytes());
  EXPECT_LT(share, ranks == 1 ? 1.01 : ranks == 2 ? 0.6 : 0.4);
  EXPECT_LT(static_cast<double>(run.roles.world.sum(bytes)),
            1.05 * static_cast<double>(run.model_bytes()))
      << "only norms twice";
}

TEST(Counters, APromptIsComputedOnceForAllItsSamplesAndTokens) {
  TinyRun run(options_of_run("prefill"));
  run.trainer.actor().load(run.start.reader());
  const auto made = run.make_generator();
  rollout::Generator& generator = *made;
  WeightBridge(run.options, run.roles, run.start.spec, at::kCPU, false)
      .run(1, &run.trainer.actor(), &generator.weights());
  const auto prompts =
      learn::load_prompts(run.options, run.options.data.prompt_dataset,
                          text::Tokenizer::load(run.options.model.path), run.roles.world);
  rollout::PromptBatch batch{.number = 1, .iteration = 1, .rows = {0, 1, 2, 3}, .groups = {}};
  for (const int64_t row : batch.rows) batch.groups.push_back(group_of(request_id(1, row, 0)));
  Samples samples;
  std::vector<size_t> mine;
  for (int64_t row = run.roles.generators.place(comm::Axis::data); row < 4;
       row += run.roles.replicas())
    mine.push_back(static_cast<size_t>(row));
  generator.begin(prompts, batch, {.n = kSamples, .temperature = 1, .seed = 7}, mine);
  generator.begin_stretch();
  while (generator.writes(1)) {
    for (const rollout::Finished& one : generator.step()) samples.append(one.sequence);
  }
  generator.end_stretch();
  int64_t prompt_tokens = 0;
  int64_t count = 0;
  for (int64_t row = run.roles.generators.place(comm::Axis::data); row < 4;
       row += run.roles.replicas()) {
    prompt_tokens += static_cast<int64_t>(prompts[row].ids.size());
    ++count;
  }
  const auto& counters = generator.counters();
  EXPECT_EQ(samples.size(), count * kSamples);
  EXPECT_EQ(counters.generated_tokens, count * kSamples * kMaxNewTokens);
  EXPECT_EQ(counters.prefill_tokens, prompt_tokens)
      << "once, not once per sample and not once per token";
  EXPECT_EQ(counters.decode_tokens, count * kSamples * (kMaxNewTokens - 1))
      << "one row for each token after the first";
}

TEST(Counters, AMicroBatchHasNoPadding) {
  Samples samples;
  for (const int32_t length : {3, 40, 7}) {
    samples.add({.id = static_cast<uint64_t>(length),
                 .ids = std::vector<int32_t>(static_cast<size_t>(length), 1),
                 .action_ranges = {{2, length}}});
  }
  const std::vector<int64_t> which{0, 1, 2};
  const learn::ActionBatch batch = learn::make_action_batch(samples, which, at::kCPU);
  EXPECT_EQ(batch.packed.ids.numel(), 50);
  EXPECT_EQ(batch.columns.numel(), 1 + 38 + 5) << "the head sees action tokens only";
}

}  // namespace
}  // namespace trireme::driver
