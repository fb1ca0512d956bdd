// Weights from files straight into a generator's slices, without a trainer.
#pragma once

#include "trireme/generate/weights.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/weight_source.hpp"

namespace trireme::generate {

// Each rank reads its own slices only. Local.
void load_weights(const model::ModelSpec& spec, const model::WeightSource& source,
                  GeneratorWeights& weights);

}  // namespace trireme::generate
