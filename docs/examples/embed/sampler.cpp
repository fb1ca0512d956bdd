// Answers to a prompt by the generation engine, in a program of your own: sampler MODEL PROMPT
// [ANSWERS] One process, no MPI. The same texts as `trireme generate --temperature 0.7
// --max-new-tokens 32`.
#include <cstdio>
#include <cstdlib>

#include "trireme/base/error.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/load_weights.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/text/tokenizer.hpp"

using namespace trireme;

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("sampler MODEL PROMPT [ANSWERS]\n", stderr), 64;
  try {
    const model::ModelFolder folder = model::open_model(argv[1]);
    const model::ModelSpec spec = model::describe_and_check(folder, model::HeadKind::language);
    const text::Tokenizer tokenizer = text::Tokenizer::load(argv[1]);
    generate::GeneratorWeights weights(spec, config::DType::f32);
    generate::load_weights(spec, *folder.weights, weights);
    generate::Engine engine(spec, weights, {.max_batch = 8});
    std::vector<generate::Request> requests(argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 1);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = request_id(0, 0, static_cast<int64_t>(i));  // draws depend on seed and id
      requests[i].prompt = tokenizer.encode(argv[2], text::SpecialTokens::once);
      requests[i].sampling.temperature = 0.7;
      requests[i].sampling.max_new_tokens = 32;
      requests[i].sampling.seed = 1;
      requests[i].sampling.stop_ids.assign(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
    }
    engine.run(std::move(requests), [&](const generate::Result& answer) {
      std::puts(tokenizer.decode(answer.output_ids, text::Skip::special).c_str());
    });
    return 0;
  } catch (const UserError& error) {  // problem (why it is one): what to do
    return std::fprintf(stderr, "%s\n", error.what()), static_cast<int>(error.code());
  }
}
