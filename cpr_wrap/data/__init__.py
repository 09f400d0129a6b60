"""Images with labels: `load_data("mnist", "robust")`, `load_folder(path)`."""

from cpr_wrap.data.datasets import DATASETS as DATASETS
from cpr_wrap.data.datasets import LOADERS as LOADERS
from cpr_wrap.data.datasets import DonorPool as DonorPool
from cpr_wrap.data.datasets import donor_pool as donor_pool
from cpr_wrap.data.datasets import load_data as load_data
from cpr_wrap.data.folder import FolderImages as FolderImages
from cpr_wrap.data.folder import load_folder as load_folder
from cpr_wrap.data.folder import open_picture as open_picture
from cpr_wrap.data.images import PARTS as PARTS
from cpr_wrap.data.images import ImageData as ImageData
from cpr_wrap.data.images import paper_split as paper_split
from cpr_wrap.data.torchvision import DataSet as DataSet
