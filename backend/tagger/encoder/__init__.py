"""An encoder with a BiLSTM and a CRF on top: the network, its training and its saved file."""
