// Holds the precompiled LibTorch header set of src/torch/torch.hpp; every Torch target reuses it.
