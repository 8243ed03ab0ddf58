"""The course's subject as torch code: what a lesson builds by hand and later lessons reuse.

collectives  all-reduce written with sends and receives, one function per algorithm
data         data parallelism: parameter broadcast, gradient averaging, buckets, the parameter server
activations  the bytes that autograd keeps for the backward pass
model        the small language model that runs through the course
tensor_ops   f, g and their kin: collectives that autograd knows
tensor       the model's layers cut over a group of ranks
tensor_linear, tensor_vocabulary  the linear layers, the embedding and the loss that these are made of
tensor_plans  the same cuts as plans for PyTorch's own tensor parallelism
zero         ZeRO stages 1, 2 and 3
zero_shards  the pieces that the stages are made of
zero_bytes   the bytes of their state, at rest and at the peak
fully_sharded  PyTorch's own ZeRO, `fully_shard`, on the course's models
deepspeed    DeepSpeed's, where it is installed
fake_world   `fully_shard` on any number of ranks, without ranks and without memory
stages       the model cut into pipeline stages; stages that sleep in place of computing
pipeline     one executor for every schedule of `utils.theory.pipeline`
weight_gradients  backward in two parts, B and W
pipeline_record, pipeline_memory  what a step really took: its times, its live activations
pipeline_paper  the same memory for any model, without ranks
pipeline_torch  PyTorch's own schedules, read and run
mesh         tensor, pipeline and data parallelism on one grid of ranks; `train_3d` is its step as a script
replay       what a recorded run's communication would take on a cluster
resnet       the image classifier whose memory lesson 01 counts
"""
